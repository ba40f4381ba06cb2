//! Sums, scaling and conversions against their references and themselves.

mod support;

use l1_tensor::ops::{add, add_in_place, add_reference, convert, scale, scale_reference};
use l1_tensor::{DType, Device, Error, Tensor, bf16, f16};
use proptest::prelude::*;
use support::*;

/// Any f32 at all: NaN, infinities, denormals.
fn any_floats() -> impl Strategy<Value = Vec<f32>> {
    prop::collection::vec(prop::num::f32::ANY, 0..80)
}

fn same(a: f32, b: f32) -> bool {
    a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan()
}

proptest! {
    #![proptest_config(random_cases(256))]

    #[test]
    fn add_and_scale_have_the_bits_of_their_references_for_any_floats(
        a in any_floats(),
        factor in prop::num::f32::ANY,
    ) {
        let n = a.len();
        let b: Vec<f32> = a.iter().rev().copied().collect();
        let (mut sum, mut scaled) = (vec![0.0; n], a.clone());
        add_reference(&a, &b, &mut sum);
        scale_reference(&mut scaled, factor);
        let at = Tensor::from_slice(&a, &[1, n]).unwrap();
        let bt = Tensor::from_slice(&b, &[1, n]).unwrap();
        for rt in every_isa() {
            let mut out = Tensor::zeros(&[1, n], DType::F32, Device::Cpu).unwrap();
            add(&rt, at.view(), bt.view(), out.view_mut()).unwrap();
            let mut inside = Tensor::from_slice(&a, &[1, n]).unwrap();
            add_in_place(&rt, inside.view_mut(), bt.view()).unwrap();
            let mut x = Tensor::from_slice(&a, &[1, n]).unwrap();
            scale(&rt, x.view_mut(), factor).unwrap();
            let got = [out, inside, x].map(|t| t.to_vec_f32().unwrap());
            let ops = [("add", &sum), ("add_in_place", &sum), ("scale", &scaled)];
            for (got, (op, want)) in got.iter().zip(ops) {
                let what = format!("{op} on {}, a [1, {n}]", rt.isa());
                let off = differences(what, &[1, n], got, want, SAME_BITS);
                prop_assert!(off.is_none(), "{}", off.unwrap_or_default());
            }
        }
    }

    #[test]
    fn conversions_round_to_nearest_even_and_widen_exactly(x in any_floats()) {
        let n = x.len();
        let xt = Tensor::from_slice(&x, &[n]).unwrap();
        for rt in every_isa() {
            let mut b = Tensor::zeros(&[n], DType::BF16, Device::Cpu).unwrap();
            let mut h = Tensor::zeros(&[n], DType::F16, Device::Cpu).unwrap();
            convert(&rt, xt.view(), b.view_mut()).unwrap();
            convert(&rt, xt.view(), h.view_mut()).unwrap();
            for (i, v) in x.iter().enumerate() {
                let got = b.view().as_slice::<bf16>("test").unwrap()[i];
                prop_assert_eq!(got.to_bits(), bf16::from_f32(*v).to_bits());
                let got = h.view().as_slice::<f16>("test").unwrap()[i];
                prop_assert_eq!(got.to_bits(), f16::from_f32(*v).to_bits());
            }
            let mut back = Tensor::zeros(&[n], DType::F32, Device::Cpu).unwrap();
            convert(&rt, b.view(), back.view_mut()).unwrap();
            let (back, want) = (back.to_vec_f32().unwrap(), rounded(&x));
            prop_assert!(back.iter().zip(&want).all(|(g, w)| same(*g, *w)));
            let mut again = Tensor::zeros(&[n], DType::BF16, Device::Cpu).unwrap();
            convert(&rt, b.view(), again.view_mut()).unwrap();
            prop_assert_eq!(bits(&again), bits(&b), "bf16 to bf16 is a copy");
        }
    }
}

#[test]
fn sums_are_those_of_paper_and_pencil() {
    let (a, b, want) = (
        [1.0f32, -2.0, 0.5, 1e8, 0.0],
        [2.0f32, -2.0, 0.25, 1.0, -3.0],
        [3.0f32, -4.0, 0.75, 1e8, -3.0],
    );
    let mut got = [9.0; 5];
    add_reference(&a, &b, &mut got);
    assert_eq!(got, want, "add, the reference, of {a:?} and {b:?}");
    let (at, bt) = (Tensor::from_slice(&a, &[5]).unwrap(), Tensor::from_slice(&b, &[5]).unwrap());
    for rt in every_isa() {
        let mut out = Tensor::zeros(&[5], DType::F32, Device::Cpu).unwrap();
        add(&rt, at.view(), bt.view(), out.view_mut()).unwrap();
        let mut inside = Tensor::from_slice(&a, &[5]).unwrap();
        add_in_place(&rt, inside.view_mut(), bt.view()).unwrap();
        for (op, t) in [("add", out), ("add_in_place", inside)] {
            let got = t.to_vec_f32().unwrap();
            assert_eq!(got, want, "{op} on {} of {a:?} and {b:?}", rt.isa());
        }
    }
}

#[test]
fn any_strides_of_the_leading_dimensions_are_walked() {
    // [2, 3, 5] as heads within tokens within a wider buffer, heads and tokens swapped.
    let x = noise(3 * 40, 1);
    let packed = Tensor::from_slice(&x, &[3, 40]).unwrap();
    let view = packed.view().narrow(1, 4, 10).unwrap().reshape(&[3, 2, 5]).unwrap();
    let view = view.transpose(0, 1).unwrap();
    for rt in every_isa() {
        let mut out = Tensor::zeros(&[2, 3, 5], DType::F32, Device::Cpu).unwrap();
        convert(&rt, view, out.view_mut()).unwrap();
        let (got, want) = (out.to_vec_f32().unwrap(), view.to_vec_f32().unwrap());
        let what = format!("convert on {}, x [2, 3, 5], heads and tokens swapped", rt.isa());
        assert_close(what, &[2, 3, 5], &got, &want, SAME_BITS);

        let mut target = Tensor::zeros(&[3, 40], DType::F32, Device::Cpu).unwrap();
        let inner = target.view_mut().narrow(1, 4, 10).unwrap().reshape(&[3, 2, 5]).unwrap();
        add_in_place(&rt, inner.transpose(0, 1).unwrap(), out.view()).unwrap();
        for (i, (got, x)) in target.to_vec_f32().unwrap().iter().zip(&x).enumerate() {
            let inside = (4..14).contains(&(i % 40));
            assert_eq!(*got, if inside { *x } else { 0.0 }, "element {i}");
        }
    }
}

#[test]
fn threads_change_no_bits() {
    let shape = [65, 777];
    let a = Tensor::from_slice(&noise(65 * 777, 1), &shape).unwrap();
    let b = Tensor::from_slice(&noise(65 * 777, 2), &shape).unwrap();
    let mut want = vec![0.0; 65 * 777];
    add_reference(&a.to_vec_f32().unwrap(), &b.to_vec_f32().unwrap(), &mut want);
    scale_reference(&mut want, 0.3);
    for isa in l1_tensor::cpu::Isa::available() {
        for threads in [1, 2, 3] {
            let rt = runtime(isa, threads);
            let mut out = Tensor::zeros(&shape, DType::F32, Device::Cpu).unwrap();
            add(&rt, a.view(), b.view(), out.view_mut()).unwrap();
            scale(&rt, out.view_mut(), 0.3).unwrap();
            let what = format!("add and scale on {}, {threads} threads, a {shape:?}", rt.isa());
            assert_close(what, &shape, &out.to_vec_f32().unwrap(), &want, SAME_BITS);
        }
    }
}

#[test]
fn integers_are_refused_by_name() {
    let rt = &every_isa()[0];
    let mut ints = Tensor::zeros(&[4], DType::I32, Device::Cpu).unwrap();
    let floats = Tensor::zeros(&[4], DType::F32, Device::Cpu).unwrap();
    let e = convert(rt, floats.view(), ints.view_mut()).unwrap_err();
    assert!(matches!(e, Error::UnexpectedDType { op: "convert", got: DType::I32, .. }), "{e}");
    let e = scale(rt, ints.view_mut(), 2.0).unwrap_err();
    assert!(matches!(e, Error::UnexpectedDType { op: "scale", .. }), "{e}");
    let e = add_in_place(rt, ints.view_mut(), floats.view()).unwrap_err();
    assert!(matches!(e, Error::UnexpectedDType { op: "add_in_place", .. }), "{e}");
}
