//! RMS norm and layer norm against their references, torch and themselves.

mod support;

use l1_tensor::ops::{
    layer_norm, layer_norm_reference, rms_norm, rms_norm_in_place, rms_norm_reference,
};
use l1_tensor::{DType, Device, Error, Tensor};
use proptest::prelude::*;
use support::*;

/// Row widths: 0 and 1, around the sixteen lanes, odd, and as wide as a big model.
fn widths() -> impl Strategy<Value = usize> {
    prop_oneof![Just(0usize), Just(1), 2..70usize, Just(576), Just(4096), Just(16385)]
}

/// Noise of some magnitude: norms must work far from 1 as well.
fn scaled_noise(n: usize, seed: u64, magnitude: i32) -> Vec<f32> {
    noise(n, seed).iter().map(|v| v * 10f32.powi(magnitude)).collect()
}

/// How far an RMS norm may be from its reference: a few roundings, and what the reference's sum of
/// `width` squares, added one by one, may itself be off by (half an ulp a step; the root halves it).
fn relative(width: usize) -> f32 {
    4e-6 + width as f32 * f32::EPSILON / 4.0
}

fn reference_rows(x: &[f32], w: &[f32], eps: f32) -> Vec<f32> {
    let mut out = vec![0.0; x.len()];
    for (x, out) in x.chunks(w.len().max(1)).zip(out.chunks_mut(w.len().max(1))) {
        rms_norm_reference(x, w, eps, out);
    }
    out
}

proptest! {
    #![proptest_config(random_cases(48))]

    #[test]
    fn rms_norm_agrees_with_its_reference_on_every_instruction_set(
        width in widths(),
        magnitude in -6..6i32,
        seed: u64,
        eps in prop_oneof![Just(1e-5f32), Just(1e-6)],
    ) {
        let (x, w) = (scaled_noise(3 * width, !seed, magnitude), noise(width, seed));
        let want = reference_rows(&x, &w, eps);
        let xt = Tensor::from_slice(&x, &[3, width]).unwrap();
        let wt = Tensor::from_slice(&w, &[width]).unwrap();
        for rt in every_isa() {
            let mut out = Tensor::zeros(&[3, width], DType::F32, Device::Cpu).unwrap();
            rms_norm(&rt, xt.view(), wt.view(), eps, out.view_mut()).unwrap();
            let got = out.to_vec_f32().unwrap();
            let what = format!("rms_norm on {}, x [3, {width}]", rt.isa());
            let off = differences(&what, &[3, width], &got, &want, within(relative(width), 1e-30));
            prop_assert!(off.is_none(), "{}", off.unwrap_or_default());

            let mut narrow = Tensor::zeros(&[3, width], DType::BF16, Device::Cpu).unwrap();
            rms_norm(&rt, xt.view(), wt.view(), eps, narrow.view_mut()).unwrap();
            prop_assert_eq!(narrow.to_vec_f32().unwrap(), rounded(&got), "bf16 is f32 rounded once");

            let mut same = Tensor::from_slice(&x, &[3, width]).unwrap();
            rms_norm_in_place(&rt, same.view_mut(), wt.view(), eps).unwrap();
            prop_assert_eq!(bits(&same), bits(&out), "in place");
        }
    }

    #[test]
    fn layer_norm_agrees_with_its_reference_on_every_instruction_set(
        width in widths(),
        magnitude in -6..6i32,
        seed: u64,
        offset in -5.0..5.0f32,
        with_bias: bool,
    ) {
        let x = scaled_noise(2 * width, !seed, magnitude);
        let x: Vec<f32> = x.iter().map(|v| v + offset).collect();
        let (w, b) = (noise(width, seed), noise(width, seed ^ 1));
        let bias = with_bias.then_some(&b[..]);
        let mut want = vec![0.0; x.len()];
        for (x, out) in x.chunks(width.max(1)).zip(want.chunks_mut(width.max(1))) {
            layer_norm_reference(x, &w, bias, 1e-5, out);
        }
        let xt = Tensor::from_slice(&x, &[2, width]).unwrap();
        let wt = Tensor::from_slice(&w, &[width]).unwrap();
        let bt = Tensor::from_slice(&b, &[width]).unwrap();
        for rt in every_isa() {
            let mut out = Tensor::zeros(&[2, width], DType::F32, Device::Cpu).unwrap();
            let bias = with_bias.then(|| bt.view());
            layer_norm(&rt, xt.view(), wt.view(), bias, 1e-5, out.view_mut()).unwrap();
            let got = out.to_vec_f32().unwrap();
            // A lane of the mean's sum rounds width / 16 times, and what that makes the mean wrong
            // by is divided by a deviation that may be far smaller than the mean.
            let mean_in_deviations = offset.abs() / deviation(&x[..width]).max(1e-5f32.sqrt());
            let roundings = (width / 16 + 8) as f32 * f32::EPSILON;
            let absolute = roundings * (2.0 + mean_in_deviations);
            let what = format!("layer_norm on {}, x [2, {width}]", rt.isa());
            let off = differences(&what, &[2, width], &got, &want, within(1e-5, absolute));
            prop_assert!(off.is_none(), "{}", off.unwrap_or_default());
        }
    }
}

/// How far the elements of a row typically lie from their mean.
fn deviation(x: &[f32]) -> f32 {
    let n = x.len().max(1) as f32;
    let mean = x.iter().sum::<f32>() / n;
    (x.iter().map(|v| (v - mean).powi(2)).sum::<f32>() / n).sqrt()
}

mod norms_agree_with_torch {
    use super::*;

    #[test]
    fn rms_norm_does() {
        let goldens = Goldens::open();
        for case in goldens.cases("rms_norm") {
            let (x, w) = (goldens.tensor(&case, "x"), goldens.tensor(&case, "weight"));
            let eps = goldens.parameters(&case)["eps"].as_f64().unwrap() as f32;
            let want = goldens.tensor(&case, "out").to_vec_f32().unwrap();
            let what = |on: &str| format!("rms_norm, {on}, {case} of torch, x {:?}", x.dims());
            let (xs, ws) = (x.to_vec_f32().unwrap(), w.to_vec_f32().unwrap());
            let got = reference_rows(&xs, &ws, eps);
            assert_close(what("the reference"), x.dims(), &got, &want, within(1e-6, 1e-9));
            for rt in every_isa() {
                let on = format!("on {}", rt.isa());
                let mut out = Tensor::zeros(x.dims(), DType::F32, Device::Cpu).unwrap();
                rms_norm(&rt, x.view(), w.view(), eps, out.view_mut()).unwrap();
                let got = out.to_vec_f32().unwrap();
                assert_close(what(&on), x.dims(), &got, &want, within(1e-6, 1e-9));

                let mut same = Tensor::from_slice(&xs, x.dims()).unwrap();
                rms_norm_in_place(&rt, same.view_mut(), w.view(), eps).unwrap();
                let got = same.to_vec_f32().unwrap();
                assert_close(
                    what(&format!("in place {on}")),
                    x.dims(),
                    &got,
                    &want,
                    within(1e-6, 1e-9),
                );
            }
        }
    }

    #[test]
    fn layer_norm_does() {
        let goldens = Goldens::open();
        for case in goldens.cases("layer_norm") {
            let (x, w) = (goldens.tensor(&case, "x"), goldens.tensor(&case, "weight"));
            let b = goldens.maybe(&case, "bias");
            let eps = goldens.parameters(&case)["eps"].as_f64().unwrap() as f32;
            let want = goldens.tensor(&case, "out").to_vec_f32().unwrap();
            for rt in every_isa() {
                let mut out = Tensor::zeros(x.dims(), DType::F32, Device::Cpu).unwrap();
                let bias = b.as_ref().map(Tensor::view);
                layer_norm(&rt, x.view(), w.view(), bias, eps, out.view_mut()).unwrap();
                let what = format!("layer_norm on {}, {case} of torch, x {:?}", rt.isa(), x.dims());
                let got = out.to_vec_f32().unwrap();
                assert_close(what, x.dims(), &got, &want, within(2e-6, 1e-6));
            }
        }
    }
}

#[test]
fn tiny_rows_show_where_eps_stands() {
    // The mean square is eps exactly, so the root holds twice that: every element becomes
    // 1 / sqrt(2), where eps outside of the root would leave nearly 1.
    let (x, w, want) = ([1e-3f32; 48], [1.0f32; 48], [0.5f32.sqrt(); 48]);
    let mut got = vec![0.0; 48];
    rms_norm_reference(&x, &w, 1e-6, &mut got);
    let what = "rms_norm, the reference, 48 times 0.001, eps 1e-6";
    assert_close(what, &[48], &got, &want, within(1e-6, 0.0));
    let (xt, wt) = (Tensor::from_slice(&x, &[48]).unwrap(), Tensor::from_slice(&w, &[48]).unwrap());
    for rt in every_isa() {
        let mut out = Tensor::zeros(&[48], DType::F32, Device::Cpu).unwrap();
        rms_norm(&rt, xt.view(), wt.view(), 1e-6, out.view_mut()).unwrap();
        let what = format!("rms_norm on {}, 48 times 0.001, eps 1e-6", rt.isa());
        assert_close(what, &[48], &out.to_vec_f32().unwrap(), &want, within(1e-6, 0.0));
    }
}

#[test]
fn a_bf16_output_is_rounded_once_after_the_weight() {
    let (rows, width) = (4, 200);
    let x = Tensor::from_slice(&noise(rows * width, 21), &[rows, width]).unwrap();
    let w = Tensor::from_slice(&noise(width, 22), &[width]).unwrap();
    for rt in every_isa() {
        let mut wide = Tensor::zeros(&[rows, width], DType::F32, Device::Cpu).unwrap();
        rms_norm(&rt, x.view(), w.view(), 1e-5, wide.view_mut()).unwrap();
        let mut narrow = Tensor::zeros(&[rows, width], DType::BF16, Device::Cpu).unwrap();
        rms_norm(&rt, x.view(), w.view(), 1e-5, narrow.view_mut()).unwrap();
        let want = rounded(&wide.to_vec_f32().unwrap());
        let what = format!("rms_norm into bf16 on {}, x [{rows}, {width}]", rt.isa());
        assert_close(what, &[rows, width], &narrow.to_vec_f32().unwrap(), &want, SAME_BITS);
    }
}

#[test]
fn a_row_alone_has_the_bits_it_has_in_a_batch_on_any_number_of_threads() {
    let (rows, width) = (83, 576); // Enough elements that threads take part.
    let x = Tensor::from_slice(&noise(rows * width, 1), &[rows, width]).unwrap();
    let w = Tensor::from_slice(&noise(width, 2), &[width]).unwrap();
    for isa in l1_tensor::cpu::Isa::available() {
        let solo = runtime(isa, 1);
        let mut expected = Vec::new();
        for i in 0..rows {
            let mut out = Tensor::zeros(&[1, width], DType::F32, Device::Cpu).unwrap();
            let row = x.view().narrow(0, i, 1).unwrap();
            rms_norm(&solo, row, w.view(), 1e-5, out.view_mut()).unwrap();
            expected.extend(bits(&out));
        }
        for threads in [1, 2, 3] {
            let rt = runtime(isa, threads);
            let mut out = Tensor::zeros(&[rows, width], DType::F32, Device::Cpu).unwrap();
            rms_norm(&rt, x.view(), w.view(), 1e-5, out.view_mut()).unwrap();
            assert!(bits(&out) == expected, "{rt}");
        }
    }
}

#[test]
fn heads_inside_a_packed_buffer_are_normalised_and_their_neighbours_left_alone() {
    let (tokens, q, heads, d, packed) = (5, 7, 3, 8, 40);
    let x = noise(tokens * packed, 3);
    let w = noise(d, 4);
    let wt = Tensor::from_slice(&w, &[d]).unwrap();
    for rt in every_isa() {
        let mut buffer = Tensor::from_slice(&x, &[tokens, packed]).unwrap();
        let view = buffer.view_mut().narrow(1, q, heads * d).unwrap();
        let view = view.reshape(&[tokens, heads, d]).unwrap();
        rms_norm_in_place(&rt, view, wt.view(), 1e-6).unwrap();
        let got = buffer.to_vec_f32().unwrap();
        for t in 0..tokens {
            let (got, x) = (&got[t * packed..][..packed], &x[t * packed..][..packed]);
            assert_eq!(got[..q], x[..q]);
            assert_eq!(got[q + heads * d..], x[q + heads * d..]);
            let want = reference_rows(&x[q..][..heads * d], &w, 1e-6);
            let what = format!("rms_norm_in_place on {}, {heads} heads of token {t}", rt.isa());
            let off = within(relative(d), 0.0);
            assert_close(what, &[heads, d], &got[q..][..heads * d], &want, off);
        }
    }
}

#[test]
fn a_nan_or_an_infinity_spoils_its_own_row_only() {
    let mut x = noise(3 * 20, 5);
    x[20 + 3] = f32::NAN;
    x[40 + 19] = f32::INFINITY;
    let xt = Tensor::from_slice(&x, &[3, 20]).unwrap();
    let w = Tensor::from_slice(&[1.0f32; 20], &[20]).unwrap();
    for rt in every_isa() {
        let mut out = Tensor::zeros(&[3, 20], DType::F32, Device::Cpu).unwrap();
        rms_norm(&rt, xt.view(), w.view(), 1e-5, out.view_mut()).unwrap();
        let out = out.to_vec_f32().unwrap();
        assert!(out[..20].iter().all(|v| v.is_finite()), "{rt}");
        assert!(out[20..40].iter().all(|v| v.is_nan()), "{rt}");
        assert!(out[40..59].iter().all(|v| *v == 0.0) && out[59].is_nan(), "inf / inf, {rt}");
    }
}

#[test]
fn what_does_not_fit_is_named() {
    let rt = &every_isa()[0];
    let x = Tensor::zeros(&[2, 8], DType::F32, Device::Cpu).unwrap();
    let w = Tensor::zeros(&[7], DType::F32, Device::Cpu).unwrap();
    let mut out = Tensor::zeros(&[2, 8], DType::F32, Device::Cpu).unwrap();
    let e = rms_norm(rt, x.view(), w.view(), 1e-5, out.view_mut()).unwrap_err();
    assert!(matches!(e, Error::ShapeMismatch { op: "rms_norm", .. }), "{e}");
    assert!(e.to_string().contains("[2, 8]") && e.to_string().contains("[7]"), "{e}");

    let w = Tensor::zeros(&[8], DType::F32, Device::Cpu).unwrap();
    let mut short = Tensor::zeros(&[1, 8], DType::F32, Device::Cpu).unwrap();
    let e = rms_norm(rt, x.view(), w.view(), 1e-5, short.view_mut()).unwrap_err();
    assert!(matches!(e, Error::ShapeMismatch { .. }), "{e}");

    let mut ints = Tensor::zeros(&[2, 8], DType::I32, Device::Cpu).unwrap();
    let e = rms_norm(rt, x.view(), w.view(), 1e-5, ints.view_mut()).unwrap_err();
    assert!(matches!(e, Error::UnexpectedDType { got: DType::I32, .. }), "{e}");

    let tall = Tensor::zeros(&[8, 2], DType::F32, Device::Cpu).unwrap();
    let turned = tall.view().transpose(0, 1).unwrap();
    let e = rms_norm(rt, turned, w.view(), 1e-5, out.view_mut()).unwrap_err();
    assert!(matches!(e, Error::UnsupportedLayout { .. }), "{e}");
}
