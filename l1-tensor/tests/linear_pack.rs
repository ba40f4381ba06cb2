//! Packing: what goes in comes out, rounded once, and errors of the source come through.

mod linear_common;

use std::sync::atomic::{AtomicU32, Ordering};

use l1_tensor::cpu::{Isa, ThreadPool};
use l1_tensor::{Error, PackedBf16, RowOrder, Weight, bf16};
use linear_common::{SAME_BITS, differences, numbers, random_cases, rounded, runtime, weight};
use proptest::prelude::*;

proptest! {
    #![proptest_config(random_cases(256))]

    #[test]
    fn rows_read_back_as_they_were_packed_rounded_to_bf16(
        n in 0usize..150, k in 0usize..150, gate_up: bool, threads in 1usize..4,
        seed in 0u64..1 << 40,
    ) {
        let (n, order) = if gate_up { (n / 2 * 2, RowOrder::GateUp) } else { (n, RowOrder::Plain) };
        let values = numbers(seed, n * k);
        let w = weight(&runtime(Isa::best(), threads), &values, n, k, order);
        prop_assert_eq!((w.n(), w.k(), w.order()), (n, k, order));
        prop_assert!(w.bytes() >= 2 * n * k);
        prop_assert!(w.bytes() <= 2 * (n + 62) * (k + 1));
        let mut row = vec![0.0; k];
        for i in 0..n {
            w.row(i, &mut row).unwrap();
            let what = format!("row {i} of a packed [{n}, {k}], {order:?}");
            let off = differences(what, &[k], &row, &rounded(&values[i * k..][..k]), SAME_BITS);
            prop_assert!(off.is_none(), "{}", off.unwrap_or_default());
        }
    }
}

#[test]
fn rounding_is_to_nearest_even_and_special_values_survive() {
    let pool = ThreadPool::new(1);
    let mut values: Vec<f32> = (0..4096u32)
        .map(|i| f32::from_bits(i.wrapping_mul(0x9e37_79b1)))
        .chain((0..512u32).flat_map(|i| [i << 23 | 0x8000, i << 23 | 0x1_8000].map(f32::from_bits)))
        .collect();
    values.extend([f32::INFINITY, f32::NEG_INFINITY, f32::NAN, -0.0, f32::MAX, f32::MIN]);
    values.push(f32::from_bits(0x7f80_0001));
    let fill = |_: usize, out: &mut [f32]| -> Result<(), Error> {
        out.copy_from_slice(&values);
        Ok(())
    };
    let w = PackedBf16::pack(&pool, 1, values.len(), RowOrder::Plain, &fill).unwrap();
    let mut row = vec![0.0; values.len()];
    w.row(0, &mut row).unwrap();
    for (v, got) in values.iter().zip(&row) {
        let want = bf16::from_f32(*v).to_f32();
        assert!(got.to_bits() == want.to_bits(), "{v:e} became {got:e} instead of {want:e}");
    }
}

#[test]
fn every_row_is_asked_for_exactly_once() {
    for (n, order) in [(100, RowOrder::Plain), (70, RowOrder::GateUp)] {
        let seen: Vec<AtomicU32> = (0..n).map(|_| AtomicU32::new(0)).collect();
        let fill = |i: usize, out: &mut [f32]| -> Result<(), Error> {
            seen[i].fetch_add(1, Ordering::Relaxed);
            out.fill(1.0);
            Ok(())
        };
        PackedBf16::pack(&ThreadPool::new(3), n, 5, order, &fill).unwrap();
        assert!(seen.iter().all(|s| s.load(Ordering::Relaxed) == 1), "{order:?}");
    }
}

#[test]
fn an_error_of_the_source_comes_back_as_it_is() {
    #[derive(Debug, PartialEq)]
    enum Mine {
        Row(usize),
        Tensor,
    }
    impl From<Error> for Mine {
        fn from(_: Error) -> Self {
            Mine::Tensor
        }
    }
    let fill = |i: usize, _: &mut [f32]| if i == 77 { Err(Mine::Row(i)) } else { Ok(()) };
    let pool = ThreadPool::new(2);
    let pack = |n, order| PackedBf16::pack(&pool, n, 4, order, &fill).err();
    assert_eq!(pack(200, RowOrder::Plain), Some(Mine::Row(77)));
    assert_eq!(pack(70, RowOrder::Plain), None);
    assert_eq!(pack(31, RowOrder::GateUp), Some(Mine::Tensor), "gates without ups");
    assert_eq!(pack(usize::MAX / 2, RowOrder::Plain), Some(Mine::Tensor), "no such memory");
}

#[test]
fn rows_beyond_the_matrix_and_buffers_of_another_size_are_refused() {
    let rt = runtime(Isa::best(), 1);
    let w: Weight = weight(&rt, &numbers(1, 12), 3, 4, RowOrder::Plain);
    let m = w.row(3, &mut [0.0; 4]).unwrap_err().to_string();
    assert!(m.contains("row 3") && m.contains("below 3"), "{m}");
    let m = w.row(0, &mut [0.0; 5]).unwrap_err().to_string();
    assert!(m.contains("[5]") && m.contains("[3, 4]"), "{m}");
}
