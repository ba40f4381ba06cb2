//! Argmax and top-k: which elements are the largest.

mod support;

use l1_tensor::ops::{TopKScratch, argmax, argmax_reference, top_k, top_k_reference};
use l1_tensor::{DType, Device, Error, Tensor};
use proptest::prelude::*;
use support::*;

/// Few distinct values, so that ties abound, with the odd NaN, infinity and negative zero.
fn rows_with_ties() -> impl Strategy<Value = Vec<f32>> {
    let value = prop_oneof![
        8 => (-4..5i32).prop_map(|v| v as f32),
        2 => -1.0..1.0f32,
        1 => Just(-0.0f32),
        1 => Just(f32::NAN),
        1 => Just(f32::INFINITY),
        1 => Just(f32::NEG_INFINITY),
    ];
    prop::collection::vec(value, 1..300)
}

fn same(a: f32, b: f32) -> bool {
    a == b || a.is_nan() && b.is_nan()
}

proptest! {
    #![proptest_config(random_cases(256))]

    #[test]
    fn argmax_agrees_with_its_reference(x in rows_with_ties()) {
        let t = Tensor::from_slice(&x, &[1, x.len()]).unwrap();
        for rt in every_isa() {
            let mut out = [u32::MAX];
            argmax(&rt, t.view(), &mut out).unwrap();
            let what = format!("argmax on {}, x [{}]", rt.isa(), x.len());
            prop_assert_eq!(out[0], argmax_reference(&x), "{}", what);
        }
    }

    #[test]
    fn top_k_agrees_with_sorting_everything(x in rows_with_ties(), k in 0..320usize) {
        let t = Tensor::from_slice(&x, &[x.len()]).unwrap();
        let (mut values, mut indices) = (vec![7.0; k], vec![7; k]);
        let mut scratch = TopKScratch::default();
        let n = top_k(t.view(), &mut values, &mut indices, &mut scratch).unwrap();
        let want = top_k_reference(&x, k);
        prop_assert_eq!(n, want.len());
        for (i, (index, value)) in want.iter().enumerate() {
            prop_assert_eq!(indices[i], *index, "place {}", i);
            prop_assert!(same(values[i], *value), "place {}", i);
        }
        prop_assert!(indices[n..].iter().all(|i| *i == 7), "beyond the end nothing is written");
    }
}

#[test]
fn a_whole_vocabulary_is_ranked_in_any_order_it_comes() {
    let n = 150_001;
    let mut rising: Vec<f32> = noise(n, 3);
    rising.sort_by(f32::total_cmp);
    let falling: Vec<f32> = rising.iter().rev().copied().collect();
    let mut scratch = TopKScratch::new(64);
    for x in [noise(n, 3), rising, falling, vec![0.5; n]] {
        let t = Tensor::from_slice(&x, &[n]).unwrap();
        let best = top_k_reference(&x, 1000);
        for k in [1, 2, 64, 1000] {
            let (mut values, mut indices) = (vec![0.0; k], vec![0; k]);
            assert_eq!(top_k(t.view(), &mut values, &mut indices, &mut scratch).unwrap(), k);
            let (want_indices, want_values): (Vec<u32>, Vec<f32>) =
                best[..k].iter().copied().unzip();
            assert_eq!(indices, want_indices, "indices of the top {k} of {n}");
            assert_close(
                format!("values of the top {k} of {n}"),
                &[k],
                &values,
                &want_values,
                SAME_BITS,
            );
        }
        for rt in every_isa() {
            let mut first = [0];
            argmax(&rt, t.view().reshape(&[1, n]).unwrap(), &mut first).unwrap();
            assert_eq!(first[0], best[0].0, "argmax of {n} on {}", rt.isa());
        }
    }
}

#[test]
fn the_lowest_index_wins_a_tie_and_nan_never_wins() {
    let nan = f32::NAN;
    let low = f32::NEG_INFINITY;
    let cases: [(&[f32], u32); 6] = [
        (&[1.0, 3.0, 3.0], 1),
        (&[-0.0, 0.0], 0),
        (&[nan, 1.0, nan], 1),
        (&[nan, low], 1),
        (&[nan, nan], 0),
        (&[low, low], 0),
    ];
    for (x, want) in cases {
        assert_eq!(argmax_reference(x), want, "argmax, the reference, of {x:?}");
        let t = Tensor::from_slice(x, &[1, x.len()]).unwrap();
        for rt in every_isa() {
            let mut out = [9];
            argmax(&rt, t.view(), &mut out).unwrap();
            assert_eq!(out[0], want, "argmax on {} of {x:?}", rt.isa());
        }
    }
}

#[test]
fn top_k_of_a_small_row_is_what_the_rules_say() {
    let (nan, inf) = (f32::NAN, f32::INFINITY);
    let x = [0.5, -1.0, 2.0, nan, 2.0, -inf, -0.0, 0.0, inf, -1.5];
    let want = [8, 2, 4, 0, 6, 7, 1, 9, 5, 3];
    let t = Tensor::from_slice(&x, &[10]).unwrap();
    for k in 0..=12 {
        let n = k.min(10);
        let ids: Vec<u32> = top_k_reference(&x, k).iter().map(|(i, _)| *i).collect();
        assert_eq!(ids, want[..n], "top {k}, the reference, of {x:?}");
        let (mut values, mut ids) = (vec![7.0; k], vec![77; k]);
        let mut scratch = TopKScratch::new(k);
        let found = top_k(t.view(), &mut values, &mut ids, &mut scratch).unwrap();
        assert_eq!(found, n, "how many are found of top {k} of {x:?}");
        assert_eq!(ids[..n], want[..n], "top {k} of {x:?}");
        for (v, i) in values.iter().zip(&ids[..n]) {
            assert!(same(*v, x[*i as usize]), "value {v} of index {i} in top {k} of {x:?}");
        }
    }
}

#[test]
fn every_row_gets_its_own_answer_on_any_number_of_threads() {
    let (rows, n) = (64, 1000);
    let x = noise(rows * n, 11);
    let t = Tensor::from_slice(&x, &[rows, n]).unwrap();
    let want: Vec<u32> = x.chunks(n).map(argmax_reference).collect();
    for isa in l1_tensor::cpu::Isa::available() {
        for threads in [1, 2, 3] {
            let mut out = vec![0; rows];
            argmax(&runtime(isa, threads), t.view(), &mut out).unwrap();
            assert_eq!(out, want, "{isa}, {threads} threads");
        }
    }
}

#[test]
fn what_has_no_answer_is_an_error() {
    let rt = &every_isa()[0];
    let empty = Tensor::zeros(&[2, 0], DType::F32, Device::Cpu).unwrap();
    let e = argmax(rt, empty.view(), &mut [0, 0]).unwrap_err();
    assert!(matches!(e, Error::UnsupportedLayout { op: "argmax", .. }), "{e}");
    let two = Tensor::zeros(&[2, 3], DType::F32, Device::Cpu).unwrap();
    let e = argmax(rt, two.view(), &mut [0]).unwrap_err();
    assert!(matches!(e, Error::UnsupportedLayout { op: "argmax", .. }), "{e}");

    let mut scratch = TopKScratch::default();
    let e = top_k(two.view(), &mut [0.0], &mut [0], &mut scratch).unwrap_err();
    assert!(matches!(e, Error::UnsupportedLayout { op: "top_k", .. }), "{e}");
    let row = Tensor::zeros(&[3], DType::F32, Device::Cpu).unwrap();
    let e = top_k(row.view(), &mut [0.0], &mut [0, 0], &mut scratch).unwrap_err();
    assert!(matches!(e, Error::BadParameter { op: "top_k", .. }), "{e}");
}
