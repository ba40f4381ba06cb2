//! The largest of a row, and the few largest.

use l1_tensor::ops::{TopKScratch, argmax, top_k};
use l1_tensor::{DType, Result, Runtime};

use crate::support::{SAME_BITS, noise};
use crate::{same, same_error, tensor, zeros};

fn largest(rt: &Runtime, x: &[f32], shape: &[usize]) -> Result<Vec<f32>> {
    let x = tensor(rt, x, shape);
    let rows: usize = shape[..shape.len() - 1].iter().product();
    let mut out = vec![u32::MAX; rows];
    argmax(rt, x.view(), &mut out)?;
    Ok(out.iter().map(|i| *i as f32).collect())
}

#[test]
fn the_largest_is_found_where_the_cpu_finds_it() {
    for (rows, n) in [(1, 1), (3, 33), (2, 5000), (9, 171), (0, 3)] {
        // Coarse, so that there are equal ones.
        let x: Vec<f32> = noise(rows * n, 1).iter().map(|v| (v * 20.0).round()).collect();
        same("argmax", SAME_BITS, |rt| largest(rt, &x, &[rows, n]));
    }
    same("argmax of one row", SAME_BITS, |rt| largest(rt, &noise(77, 2), &[77]));
}

#[test]
fn nan_is_passed_over_and_infinities_count() {
    let (nan, inf) = (f32::NAN, f32::INFINITY);
    let x = [
        [nan, 1.0, 3.0, 2.0],
        [-inf, -inf, nan, -inf],
        [nan, nan, nan, nan],
        [0.0, -0.0, -inf, nan],
        [1.0, inf, nan, inf],
    ];
    same("argmax", SAME_BITS, |rt| largest(rt, x.as_flattened(), &[5, 4]));
}

#[test]
fn the_few_largest_are_the_cpus() {
    let scratch = || TopKScratch::new(4);
    let x: Vec<f32> = noise(300, 3).iter().map(|v| (v * 9.0).round()).collect();
    for k in [1, 5, 100, 400] {
        same("top_k", SAME_BITS, |rt| {
            let x = tensor(rt, &x, &[3, 100]);
            let (mut values, mut indices) = (vec![0.0; k], vec![0; k]);
            let row = x.view().narrow(0, 1, 1)?.reshape(&[100])?;
            let found = top_k(row, &mut values, &mut indices, &mut scratch())?;
            values.extend(indices.iter().map(|i| *i as f32));
            values.push(found as f32);
            Ok(values)
        });
    }
    same_error(|rt| {
        let x = zeros(rt, &[4], DType::BF16);
        top_k(x.view(), &mut [0.0], &mut [0], &mut scratch()).map(|_| vec![])
    });
}

#[test]
fn what_does_not_fit_is_said_in_the_cpus_words() {
    let run = |rt: &Runtime, shape: &[usize], dtype, rows: usize| {
        let x = zeros(rt, shape, dtype);
        argmax(rt, x.view(), &mut vec![0; rows]).map(|()| vec![])
    };
    same_error(|rt| run(rt, &[2, 3], DType::F32, 3));
    same_error(|rt| run(rt, &[2, 0], DType::F32, 2));
    same_error(|rt| run(rt, &[2, 3], DType::BF16, 2));
}
