//! Norms.

use l1_tensor::ops::{layer_norm, rms_norm, rms_norm_in_place};
use l1_tensor::{DType, Result, Runtime};

use crate::support::{noise, within};
use crate::{refused, same, same_error, tensor, zeros};

const EPS: f32 = 1e-5;

#[test]
fn rms_norm_is_the_cpus() {
    for [t, h] in [[1, 1], [3, 60], [2, 64], [5, 171], [2, 1024], [0, 8]] {
        let case = |to| {
            move |rt: &Runtime| -> Result<Vec<f32>> {
                let x = tensor(rt, &noise(t * h, 1), &[t, h]);
                let weight = tensor(rt, &noise(h, 2), &[h]);
                let mut out = zeros(rt, &[t, h], to);
                rms_norm(rt, x.view(), weight.view(), EPS, out.view_mut())?;
                out.to_vec_f32()
            }
        };
        same(&format!("rms_norm [{t}, {h}]"), within(1e-5, 1e-6), case(DType::F32));
        same(&format!("rms_norm [{t}, {h}], bf16"), within(8e-3, 1e-5), case(DType::BF16));
    }
}

#[test]
fn heads_inside_of_a_packed_buffer_are_normalised_and_nothing_beside_them() {
    for (tokens, heads, dim) in [(1, 1, 18), (3, 4, 32), (2, 3, 64), (4, 2, 7)] {
        let width = heads * dim + 2 * dim + 5;
        same("rms_norm_in_place", within(1e-5, 1e-6), |rt| {
            let mut packed = tensor(rt, &noise(tokens * width, 3), &[tokens, width]);
            let weight = tensor(rt, &noise(dim, 4), &[dim]);
            let view = packed.view_mut().narrow(1, dim, heads * dim)?;
            let view = view.reshape(&[tokens, heads, dim])?;
            rms_norm_in_place(rt, view, weight.view(), EPS)?;
            packed.to_vec_f32()
        });
    }
}

#[test]
fn rows_are_normalised_in_place() {
    same("rms_norm_in_place", within(1e-5, 1e-6), |rt| {
        let mut x = tensor(rt, &noise(4 * 50, 5), &[4, 50]);
        let weight = tensor(rt, &noise(33, 6), &[33]);
        rms_norm_in_place(rt, x.view_mut().narrow(1, 9, 33)?, weight.view(), EPS)?;
        x.to_vec_f32()
    });
}

#[test]
fn layer_norm_is_the_cpus() {
    for [t, h] in [[1, 2], [3, 60], [4, 171], [2, 512]] {
        for (with_bias, to) in [(true, DType::F32), (false, DType::F32), (true, DType::BF16)] {
            // An ulp of the mean is 8e-6.
            let allowed = if to == DType::F32 { within(2e-5, 2e-5) } else { within(8e-3, 1e-4) };
            same(&format!("layer_norm [{t}, {h}]"), allowed, |rt| {
                // Far from zero: a variance taken as a difference of squares would show.
                let x: Vec<f32> = noise(t * h, 7).iter().map(|v| 100.0 + v).collect();
                let x = tensor(rt, &x, &[t, h]);
                let (weight, bias) =
                    (tensor(rt, &noise(h, 8), &[h]), tensor(rt, &noise(h, 9), &[h]));
                let mut out = zeros(rt, &[t, h], to);
                let bias = with_bias.then(|| bias.view());
                layer_norm(rt, x.view(), weight.view(), bias, 1e-3, out.view_mut())?;
                out.to_vec_f32()
            });
        }
    }
}

#[test]
fn what_does_not_fit_is_said_in_the_cpus_words() {
    let t = |rt: &Runtime, shape: &[usize]| zeros(rt, shape, DType::F32);
    same_error(|rt| {
        let (x, w, mut out) = (t(rt, &[2, 3]), t(rt, &[4]), t(rt, &[2, 3]));
        rms_norm(rt, x.view(), w.view(), EPS, out.view_mut()).map(|()| vec![])
    });
    same_error(|rt| {
        let (x, w, mut out) = (t(rt, &[2, 3]), t(rt, &[3]), zeros(rt, &[2, 3], DType::I32));
        rms_norm(rt, x.view(), w.view(), EPS, out.view_mut()).map(|()| vec![])
    });
    same_error(|rt| {
        let (mut x, w) = (t(rt, &[2, 3]), zeros(rt, &[3], DType::BF16));
        rms_norm_in_place(rt, x.view_mut(), w.view(), EPS).map(|()| vec![])
    });
    same_error(|rt| {
        let (x, w, mut out) = (t(rt, &[2, 3]), t(rt, &[3]), t(rt, &[2, 3]));
        let bias = t(rt, &[2]);
        layer_norm(rt, x.view(), w.view(), Some(bias.view()), EPS, out.view_mut()).map(|()| vec![])
    });
    // Rows that no single stride reaches: the CPU walks them, a kernel does not.
    refused("one stride", |rt| {
        let (x, w, mut out) = (t(rt, &[3, 4, 8]), t(rt, &[8]), t(rt, &[3, 2, 8]));
        rms_norm(rt, x.view().narrow(1, 0, 2)?, w.view(), EPS, out.view_mut())
    });
}
