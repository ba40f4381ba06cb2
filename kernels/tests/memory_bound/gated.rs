//! Gated activations.

use half::bf16;
use kernels::{Float, ops, ops::Activation};

use crate::common::{bytes, gpu, under_every_order};
use crate::field::{Field, Layout, numbers};
use crate::{bits, close, refused};

const ALL: [Activation; 3] = [Activation::Silu, Activation::GeluTanh, Activation::GeluErf];
/// The last is more than one block's.
const WIDTHS: [usize; 6] = [1, 3, 60, 171, 512, 4500];

/// The normal distribution function below `x`, by Simpson's rule over the twelve units in front of it: of
/// a far tail too this knows the digits.
fn normal(x: f64) -> f64 {
    if x > 0.0 {
        return 1.0 - normal(-x);
    }
    let density = |t: f64| (-0.5 * t * t).exp() / (2.0 * std::f64::consts::PI).sqrt();
    let (steps, from) = (1200, x - 12.0);
    let h = (x - from) / f64::from(steps);
    let weight = |i: i32| match i {
        0 | 1200 => 1.0,
        i if i % 2 == 1 => 4.0,
        _ => 2.0,
    };
    (0..=steps).map(|i| weight(i) * density(from + h * f64::from(i))).sum::<f64>() * h / 3.0
}

fn activate(activation: Activation, x: f32) -> f64 {
    let x = f64::from(x);
    match activation {
        Activation::Silu => x / (1.0 + (-x).exp()),
        Activation::GeluTanh => {
            let u = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x);
            // As the logistic function: (1 + tanh u) / 2 has no digits left where u is far below zero.
            x / (1.0 + (-2.0 * u).exp())
        }
        Activation::GeluErf => x * normal(x),
    }
}

#[test]
fn a_gate_is_activated_and_multiplied_by_its_up_at_any_address() {
    let Some(gpu) = gpu() else { return };
    for activation in ALL {
        for width in WIDTHS {
            let rows = if width > 1000 { 1 } else { 3 };
            let mut x = numbers(1, rows * 2 * width);
            x.iter_mut().for_each(|v| *v *= 6.0);
            let want: Vec<f64> = (0..rows * width)
                .map(|i| {
                    let at = i / width * 2 * width + i % width;
                    activate(activation, x[at]) * f64::from(x[at + width])
                })
                .collect();
            for dtype in [Float::F32, Float::Bf16] {
                // An exponent of 18 costs five bits of the exponential's argument.
                let relative = if dtype == Float::F32 { 6e-6 } else { 1.0 / 256.0 };
                for (from, to) in [(0, 0), (1, 1), (2, 0), (0, 2)] {
                    let source =
                        Field::new(&gpu, Float::F32, Layout::all(rows, 2 * width)[from], &x);
                    let mut out = Field::unwritten(&gpu, dtype, Layout::all(rows, width)[to]);
                    ops::gated(&gpu, activation, source.mat(), out.mat_mut()).unwrap();
                    for (i, (got, want)) in out.read().iter().zip(&want).enumerate() {
                        let ok = close(*got, *want, relative, 1e-30);
                        assert!(ok, "{activation:?}, {width}, {i}: {got}, not {want}");
                    }
                }
            }
        }
    }
}

#[test]
fn every_finite_gate_has_a_finite_result_and_the_others_are_as_in_arithmetic() {
    let Some(gpu) = gpu() else { return };
    let gates =
        [0.0, -0.0, 200.0, -200.0, f32::MAX, f32::MIN, f32::INFINITY, f32::NEG_INFINITY, f32::NAN];
    let n = gates.len();
    let x: Vec<f32> = gates.into_iter().chain(std::iter::repeat_n(1.0, n)).collect();
    for activation in ALL {
        let source = Field::new(&gpu, Float::F32, Layout::dense(1, 2 * n), &x);
        let mut out = Field::unwritten(&gpu, Float::F32, Layout::dense(1, n));
        ops::gated(&gpu, activation, source.mat(), out.mat_mut()).unwrap();
        let got = out.read();
        assert_eq!(got[..4], [0.0, 0.0, 200.0, 0.0], "{activation:?}");
        assert_eq!(got[4..7], [f32::MAX, 0.0, f32::INFINITY], "{activation:?}");
        assert!(got[7..].iter().all(|v| v.is_nan()), "{activation:?}: {got:?}");
    }
}

#[test]
fn bf16_is_the_rounding_of_f32_and_no_order_of_threads_changes_it() {
    let Some(gpu) = gpu() else { return };
    let x = numbers(2, 3 * 2 * 171);
    for activation in ALL {
        let run = |dtype| {
            let source = Field::new(&gpu, Float::F32, Layout::dense(3, 2 * 171), &x);
            let mut out = Field::unwritten(&gpu, dtype, Layout::dense(3, 171));
            ops::gated(&gpu, activation, source.mat(), out.mat_mut()).unwrap();
            out.read()
        };
        let rounded: Vec<f32> =
            run(Float::F32).iter().map(|v| bf16::from_f32(*v).to_f32()).collect();
        assert_eq!(bits(&run(Float::Bf16)), bits(&rounded));
        under_every_order(|| bytes(&run(Float::Bf16)));
    }
}

#[test]
fn shapes_that_do_not_fit_are_named_with_their_numbers() {
    let Some(gpu) = gpu() else { return };
    let x = Field::unwritten(&gpu, Float::F32, Layout::dense(3, 16));
    let narrow = Field::unwritten(&gpu, Float::Bf16, Layout::dense(3, 16));
    let mut out = Field::unwritten(&gpu, Float::F32, Layout::dense(3, 7));
    let silu = Activation::Silu;
    refused(ops::gated(&gpu, silu, x.mat(), out.mat_mut()), &["[3, 16]", "[3, 7]"]);
    refused(ops::gated(&gpu, silu, narrow.mat(), out.mat_mut()), &["Bf16", "F32"]);
    let none = Field::new(&gpu, Float::F32, Layout::dense(0, 16), &[]);
    let mut nothing = Field::new(&gpu, Float::F32, Layout::dense(0, 8), &[]);
    ops::gated(&gpu, silu, none.mat(), nothing.mat_mut()).unwrap();
}
