//! Matmuls against sums that are taken one by one, in f64.

#[path = "../common/mod.rs"]
mod common;
mod gated;
mod invariance;
mod nvfp4;
mod problem;
mod tiles;

use half::bf16;
use kernels::Float::{Bf16, F32};
use kernels::ops::Arithmetic::{self, BatchInvariant, Fast};
use kernels::ops::{Accumulate, linear};
use kernels::{Buffer, Mat, MatMut};

use problem::{Problem, assert_close};

/// Tokens, rows of the weight, columns. Among them every limit of a tile and of a path, one more and one
/// less, and columns that cannot be read 16 bytes at a time.
const SHAPES: [[usize; 3]; 14] = [
    [1, 1, 1],
    [1, 351, 60],
    [2, 7, 171],
    [3, 16, 18],
    [4, 17, 64],
    [7, 24, 136],
    [8, 33, 128],
    [9, 20, 72],
    [12, 31, 31],
    [15, 32, 160],
    [16, 15, 200],
    [17, 65, 171],
    [33, 70, 96],
    [65, 9, 40],
];

fn products_are_sums(dtype: kernels::Float, arithmetic: Arithmetic) {
    let gpu = common::gpu().unwrap();
    for (seed, shape) in SHAPES.into_iter().enumerate() {
        let problem = Problem::new(&gpu, dtype, shape, seed as u64);
        let y = problem.linear(Accumulate::Store, arithmetic, F32);
        assert_close(&problem, &y, |product, _| product, F32);
    }
}

#[test]
fn products_of_bf16_are_sums() {
    products_are_sums(Bf16, Fast);
}

#[test]
fn products_of_bf16_are_sums_in_a_fixed_order_too() {
    products_are_sums(Bf16, BatchInvariant);
}

#[test]
fn products_of_f32_are_sums() {
    products_are_sums(F32, Fast);
}

#[test]
fn products_of_f32_are_sums_in_a_fixed_order_too() {
    products_are_sums(F32, BatchInvariant);
}

#[test]
fn rows_longer_than_a_block_reads_at_once_are_summed_to_their_end() {
    let gpu = common::gpu().unwrap();
    for shape in [[3, 18, 1024], [2, 5, 1032], [9, 5, 2051]] {
        for dtype in [Bf16, F32] {
            let problem = Problem::new(&gpu, dtype, shape, 7);
            for arithmetic in [Fast, BatchInvariant] {
                let y = problem.linear(Accumulate::Store, arithmetic, F32);
                assert_close(&problem, &y, |product, _| product, F32);
            }
        }
    }
}

#[test]
fn rows_may_lie_apart_and_what_is_between_them_stays() {
    let gpu = common::gpu().unwrap();
    // With 8 and 24 more, rows can still be read 16 bytes at a time; with 3 and 5 they cannot.
    for apart in [[8, 24, 4], [3, 5, 1]] {
        for shape in [[5, 20, 64], [20, 35, 64]] {
            for dtype in [Bf16, F32] {
                let problem = Problem::apart(&gpu, dtype, shape, apart, 3);
                for arithmetic in [Fast, BatchInvariant] {
                    let y = problem.linear(Accumulate::Store, arithmetic, F32);
                    assert_close(&problem, &y, |product, _| product, F32);
                }
            }
        }
    }
}

#[test]
fn a_product_is_added_scaled_to_what_is_there() {
    let gpu = common::gpu().unwrap();
    for shape in [[1, 20, 60], [16, 20, 64], [18, 35, 40]] {
        for dtype in [Bf16, F32] {
            let problem = Problem::new(&gpu, dtype, shape, 4);
            for arithmetic in [Fast, BatchInvariant] {
                let y = problem.linear(Accumulate::Add { scale: -0.75 }, arithmetic, F32);
                assert_close(&problem, &y, |product, before| before - 0.75 * product, F32);
            }
        }
    }
}

#[test]
fn a_product_stored_as_bf16_is_the_f32_one_rounded() {
    let gpu = common::gpu().unwrap();
    for shape in [[2, 21, 72], [19, 21, 72]] {
        for dtype in [Bf16, F32] {
            let problem = Problem::new(&gpu, dtype, shape, 5);
            for arithmetic in [Fast, BatchInvariant] {
                let exact = problem.linear(Accumulate::Store, arithmetic, F32);
                let rounded = problem.linear(Accumulate::Store, arithmetic, Bf16);
                let expected: Vec<f32> =
                    exact.iter().map(|y| bf16::from_f32(*y).to_f32()).collect();
                assert_eq!(rounded, expected, "{shape:?}");
            }
        }
    }
}

#[test]
fn a_sum_of_nothing_is_0() {
    let gpu = common::gpu().unwrap();
    for dtype in [Bf16, F32] {
        for tokens in [1, 17] {
            let problem = Problem::new(&gpu, dtype, [tokens, 5, 0], 6);
            for arithmetic in [Fast, BatchInvariant] {
                let y = problem.linear(Accumulate::Store, arithmetic, F32);
                assert_eq!(y, vec![0.0; tokens * 5]);
                let y = problem.linear(Accumulate::Add { scale: 2.0 }, arithmetic, F32);
                assert_eq!(y, problem.before());
            }
        }
    }
}

#[test]
fn no_tokens_and_no_rows_are_done_at_once() {
    let gpu = common::gpu().unwrap();
    for shape in [[0, 5, 8], [3, 0, 8], [0, 0, 0]] {
        let problem = Problem::new(&gpu, Bf16, shape, 6);
        assert!(problem.linear(Accumulate::Store, Fast, F32).is_empty());
    }
}

#[test]
fn a_token_of_nan_or_infinity_spoils_no_other() {
    let gpu = common::gpu().unwrap();
    for dtype in [Bf16, F32] {
        for tokens in [3, 18] {
            let mut problem = Problem::new(&gpu, dtype, [tokens, 20, 52], 8);
            let clean = problem.linear(Accumulate::Store, BatchInvariant, F32);
            problem.set_token(1, f32::NAN);
            problem.set_token(2, f32::INFINITY);
            for arithmetic in [Fast, BatchInvariant] {
                let y = problem.linear(Accumulate::Store, arithmetic, F32);
                assert!(y[20..40].iter().all(|y| y.is_nan()));
                assert!(y[40..60].iter().all(|y| !y.is_finite()));
                for (t, (row, clean)) in y.chunks(20).zip(clean.chunks(20)).enumerate() {
                    let near = |(a, b): (&f32, &f32)| (a - b).abs() < 1e-3;
                    assert!(t == 1 || t == 2 || row.iter().zip(clean).all(near), "token {t}");
                }
            }
        }
    }
}

#[test]
fn shapes_that_do_not_fit_are_refused() {
    let gpu = common::gpu().unwrap();
    let memory = Buffer::zeroed(&gpu, 4096).unwrap();
    let mut target = Buffer::zeroed(&gpu, 4096).unwrap();
    let of = |dtype, rows, width| Mat::dense(memory.view(), dtype, rows, width).unwrap();
    let mut refused = |x, w, accumulate, out: (kernels::Float, usize, usize)| {
        let out = MatMut::dense(target.view_mut(), out.0, out.1, out.2).unwrap();
        let refused = linear(&gpu, x, w, accumulate, Fast, out);
        assert!(matches!(refused, Err(kernels::Error::Shape { .. })), "{refused:?}");
    };
    let add = Accumulate::Add { scale: 1.0 };
    refused(of(Bf16, 2, 8), of(Bf16, 3, 9), Accumulate::Store, (F32, 2, 3));
    refused(of(Bf16, 2, 8), of(Bf16, 3, 8), Accumulate::Store, (F32, 3, 2));
    refused(of(Bf16, 2, 8), of(F32, 3, 8), Accumulate::Store, (F32, 2, 3));
    refused(of(Bf16, 2, 8), of(Bf16, 3, 8), add, (Bf16, 2, 3));
}
