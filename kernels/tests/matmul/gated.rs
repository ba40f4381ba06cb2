//! Products that are folded: gates and ups.

use kernels::Buffer;
use kernels::Float::{self, Bf16, F32};
use kernels::ops::Activation::{self, GeluErf, GeluTanh, Silu};
use kernels::ops::Arithmetic::{self, BatchInvariant, Fast};
use kernels::ops::linear_gated;

use crate::common;
use crate::problem::{Problem, numbers};

fn fold(
    problem: &Problem,
    activation: Activation,
    bias: Option<&[f32]>,
    arithmetic: Arithmetic,
    out: Float,
) -> Vec<f32> {
    let gpu = &problem.gpu;
    let bias = bias.map(|bias| Buffer::from_slice(gpu, bias).unwrap());
    problem.with_memory(problem.rows / 2, out, |y| {
        let bias = bias.as_ref().map(|bias| bias.view().cast());
        let (x, weight) = (problem.x(), problem.weight());
        linear_gated(gpu, activation, x, weight, bias, arithmetic, y).unwrap();
    })
}

/// The definitions; the error function by its integral (Simpson's rule).
fn activated(activation: Activation, x: f64) -> f64 {
    match activation {
        Silu => x / (1.0 + (-x).exp()),
        GeluTanh => {
            let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3));
            0.5 * x * (1.0 + inner.tanh())
        }
        GeluErf => {
            let (end, steps) = (x / 2f64.sqrt(), 400);
            let at = |i: usize| (-(end * i as f64 / steps as f64).powi(2)).exp();
            let weighted = (0..=steps).map(|i| match i {
                0 => at(i),
                i if i == steps => at(i),
                i if i % 2 == 1 => 4.0 * at(i),
                i => 2.0 * at(i),
            });
            let integral = weighted.sum::<f64>() * end / steps as f64 / 3.0;
            0.5 * x * (1.0 + 2.0 / std::f64::consts::PI.sqrt() * integral)
        }
    }
}

fn assert_folded(dtype: Float, shape: [usize; 3], arithmetic: Arithmetic) {
    let gpu = common::gpu().unwrap();
    let problem = Problem::new(&gpu, dtype, shape, 31);
    let half = problem.rows / 2;
    let bias = numbers(problem.rows, 32);
    for activation in [Silu, GeluTanh, GeluErf] {
        for bias in [None, Some(&bias[..])] {
            let y = fold(&problem, activation, bias, arithmetic, F32);
            assert_eq!(y.len(), problem.tokens * half);
            for (i, y) in y.iter().enumerate() {
                let (t, n) = (i / half, i % half);
                let with_bias =
                    |n: usize| problem.product(t, n).0 + bias.map_or(0.0, |b| f64::from(b[n]));
                let expected = activated(activation, with_bias(n)) * with_bias(half + n);
                let off = (f64::from(*y) - expected).abs();
                let most = 2e-5 * (1.0 + expected.abs());
                assert!(off < most, "{shape:?} {activation:?}: ({t}, {n}) {y}, not {expected}");
            }
        }
    }
}

#[test]
fn gates_and_ups_of_few_tokens_are_folded_by_the_product_itself() {
    for shape in [[1, 2, 9], [3, 34, 60], [8, 16, 64], [9, 50, 40], [16, 18, 136]] {
        assert_folded(Bf16, shape, Fast);
    }
}

#[test]
fn gates_and_ups_of_many_tokens_are_folded_behind_the_product() {
    assert_folded(Bf16, [18, 34, 40], Fast);
}

#[test]
fn more_tokens_than_scratch_is_for_are_folded_in_parts() {
    assert_folded(Bf16, [4096 + 5, 2, 3], Fast);
}

#[test]
fn gates_and_ups_are_folded_in_a_fixed_order_and_in_f32_too() {
    assert_folded(Bf16, [3, 34, 40], BatchInvariant);
    assert_folded(F32, [3, 34, 41], Fast);
    assert_folded(F32, [10, 34, 41], BatchInvariant);
}

#[test]
fn folded_as_bf16_is_folded_as_f32_rounded() {
    let gpu = common::gpu().unwrap();
    for tokens in [2, 18] {
        let problem = Problem::new(&gpu, Bf16, [tokens, 22, 40], 33);
        let exact = fold(&problem, Silu, None, Fast, F32);
        let rounded = fold(&problem, Silu, None, Fast, Bf16);
        let expected = exact.iter().map(|y| half::bf16::from_f32(*y).to_f32());
        assert_eq!(rounded, expected.collect::<Vec<_>>());
    }
}

#[test]
fn threads_that_fold_at_the_same_time_do_not_meet_in_scratch() {
    let gpu = common::gpu().unwrap();
    let problems = [35, 36].map(|seed| Problem::new(&gpu, Bf16, [18, 64, 40], seed));
    let alone = problems.each_ref().map(|p| fold(p, Silu, None, Fast, F32));
    std::thread::scope(|scope| {
        for (problem, alone) in problems.iter().zip(&alone) {
            scope.spawn(move || {
                for _ in 0..50 {
                    assert_eq!(&fold(problem, Silu, None, Fast, F32), alone);
                }
            });
        }
    });
}

#[test]
fn a_gate_without_an_up_is_refused() {
    let gpu = common::gpu().unwrap();
    let problem = Problem::new(&gpu, Bf16, [2, 3, 8], 34);
    problem.with_memory(1, F32, |out| {
        let (x, weight) = (problem.x(), problem.weight());
        let refused = linear_gated(&gpu, Silu, x, weight, None, Fast, out);
        assert!(matches!(refused, Err(kernels::Error::Shape { .. })), "{refused:?}");
    });
}
