//! `l0.rms_norm`.

use std::sync::Arc;

use kernels::{Buffer, Gpu, ops};

use crate::common::under_every_order;
use crate::{assert_close, mat, mat_mut, numbers, upload};

fn run(gpu: &Arc<Gpu>, x: &[f32], weight: &[f32], eps: f32) -> Vec<f32> {
    let (width, rows) = (weight.len(), x.len() / weight.len());
    let (x, weight) = (upload(gpu, x), upload(gpu, weight));
    let bytes = under_every_order(|| {
        let mut out = Buffer::zeroed(gpu, rows * width * 4).unwrap();
        let to = mat_mut(&mut out, rows, width);
        ops::rms_norm(gpu, mat(&x, rows, width), weight.view().cast(), eps, to).unwrap();
        out.to_vec::<u8>().unwrap()
    });
    bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
}

fn expected(x: &[f32], weight: &[f32], eps: f32) -> Vec<f32> {
    x.chunks(weight.len())
        .flat_map(|row| {
            let squares: f64 = row.iter().map(|v| f64::from(*v).powi(2)).sum();
            let scale = 1.0 / (squares / row.len() as f64 + f64::from(eps)).sqrt();
            row.iter().zip(weight).map(move |(x, w)| (f64::from(*x) * scale * f64::from(*w)) as f32)
        })
        .collect()
}

#[test]
fn a_row_is_divided_by_its_root_mean_square() {
    let gpu = crate::gpu();
    for (rows, width) in [(1, 1), (3, 5), (2, 64), (5, 171), (2, 600)] {
        let (x, weight) = (numbers(1, rows * width), numbers(2, width));
        let got = run(&gpu, &x, &weight, 1e-5);
        assert_close(&got, &expected(&x, &weight, 1e-5), 2e-6);
    }
}

#[test]
fn eps_stands_under_the_root() {
    let gpu = crate::gpu();
    let x: Vec<f32> = numbers(3, 64).iter().map(|v| v * 1e-3).collect();
    let weight = vec![1.0; 64];
    assert_close(&run(&gpu, &x, &weight, 1e-6), &expected(&x, &weight, 1e-6), 1e-5);
}

#[test]
fn a_row_of_zeros_stays_one() {
    let gpu = crate::gpu();
    assert_eq!(run(&gpu, &[0.0; 40], &[2.0; 40], 1e-6), vec![0.0; 40]);
}

#[test]
fn a_row_has_the_same_bits_alone_and_among_others() {
    let gpu = crate::gpu();
    let (x, weight) = (numbers(4, 7 * 130), numbers(5, 130));
    let all = run(&gpu, &x, &weight, 1e-5);
    for (row, of_all) in x.chunks(130).zip(all.chunks(130)) {
        assert_eq!(run(&gpu, row, &weight, 1e-5), of_all);
    }
}
