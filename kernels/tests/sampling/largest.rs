//! The largest, and the k largest.

use std::sync::Arc;

use kernels::ops::{MOST_TOP_K, argmax, top_k};
use kernels::{Buffer, Float, Gpu, MatMut};

use crate::{Logits, Random, common};

/// Ids in line: NaN first, then the larger, of equal ones the lower.
pub(crate) fn line(row: &[f32]) -> Vec<u32> {
    let mut ids: Vec<u32> = (0..row.len() as u32).collect();
    ids.sort_by(|a, b| {
        let (x, y) = (row[*a as usize], row[*b as usize]);
        y.is_nan().cmp(&x.is_nan()).then(y.partial_cmp(&x).unwrap_or(std::cmp::Ordering::Equal))
    });
    ids
}

fn argmax_of(gpu: &Arc<Gpu>, rows: &[Vec<f32>], apart: usize) -> Vec<u32> {
    let logits = Logits::new(gpu, rows, apart);
    let mut out = Buffer::from_slice(gpu, &vec![77u32; rows.len()]).unwrap();
    argmax(gpu, logits.mat(), out.view_mut().cast()).unwrap();
    out.to_vec().unwrap()
}

fn top_k_of(gpu: &Arc<Gpu>, rows: &[Vec<f32>], k: usize) -> (Vec<u32>, Vec<f32>) {
    let logits = Logits::new(gpu, rows, 3);
    let mut ids = Buffer::from_slice(gpu, &vec![77u32; rows.len() * k]).unwrap();
    let mut values = Buffer::zeroed(gpu, rows.len() * k * 4).unwrap();
    let out = MatMut::dense(values.view_mut(), Float::F32, rows.len(), k).unwrap();
    top_k(gpu, logits.mat(), k, out, ids.view_mut().cast()).unwrap();
    (ids.to_vec().unwrap(), values.to_vec().unwrap())
}

pub(crate) fn assert_largest(rows: &[Vec<f32>], ks: &[usize]) {
    let gpu = common::gpu().unwrap();
    let lines: Vec<Vec<u32>> = rows.iter().map(|row| line(row)).collect();
    for apart in [0, 5] {
        let firsts: Vec<u32> = lines.iter().map(|line| line[0]).collect();
        assert_eq!(argmax_of(&gpu, rows, apart), firsts);
    }
    for &k in ks {
        let (ids, values) = top_k_of(&gpu, rows, k);
        for (r, line) in lines.iter().enumerate() {
            assert_eq!(ids[r * k..][..k], line[..k], "row {r}, the {k} largest");
            for (id, value) in ids[r * k..].iter().zip(&values[r * k..][..k]) {
                assert_eq!(value.to_bits(), rows[r][*id as usize].to_bits());
            }
        }
    }
}

#[test]
fn random_rows_have_the_largest_that_sorting_finds() {
    let mut random = Random::new(1);
    for width in [1, 2, 31, 60, 351, 1000] {
        let rows: Vec<_> = (0..3).map(|_| random.logits(width, 3.0)).collect();
        let ks: Vec<usize> = [1, 7, 40, 64].into_iter().filter(|k| *k <= width).collect();
        assert_largest(&rows, &ks);
    }
}

#[test]
fn a_long_row_that_is_split_over_blocks_has_the_largest_that_sorting_finds() {
    let mut random = Random::new(2);
    let mut rows: Vec<_> = (0..2).map(|_| random.logits(20_003, 3.0)).collect();
    // In the last part, and equal to one in the first.
    rows[1][20_002] = 100.0;
    rows[1][3] = 100.0;
    assert_largest(&rows, &[50]);
}

#[test]
fn of_equal_ones_the_first_are_taken() {
    let mut random = Random::new(3);
    let rows: Vec<_> = [2, 3, 40].into_iter().map(|values| random.steps(700, values)).collect();
    assert_largest(&rows, &[1, 10, 64]);
    assert_largest(&[vec![-2.5; 300]], &[64]);
}

#[test]
fn nan_is_before_all_and_infinities_are_at_the_ends() {
    let mut random = Random::new(4);
    let mut rows: Vec<_> = (0..5).map(|_| random.logits(90, 3.0)).collect();
    rows[0][40] = f32::NAN;
    rows[0][17] = -f32::NAN;
    rows[1][88] = f32::INFINITY;
    rows[1][3] = f32::INFINITY;
    rows[2].fill(f32::NEG_INFINITY);
    rows[2][50] = -3e38;
    rows[3].fill(f32::NAN);
    rows[4].fill(f32::NEG_INFINITY);
    assert_largest(&rows, &[1, 4, 64]);
}

#[test]
fn zeros_of_both_signs_are_equal() {
    assert_largest(&[vec![-1.0, -0.0, 0.0, -0.0, 1e-45, -1e-45]], &[3, 6]);
}

#[test]
fn the_order_of_threads_changes_nothing() {
    let gpu = common::gpu().unwrap();
    let mut random = Random::new(5);
    let rows = vec![random.steps(900, 30), random.logits(900, 2.0)];
    common::under_every_order(|| {
        let (ids, values) = top_k_of(&gpu, &rows, 33);
        let firsts = argmax_of(&gpu, &rows, 1);
        [common::bytes(&ids), common::bytes(&values), common::bytes(&firsts)].concat()
    });
}

#[test]
fn more_than_there_is_and_more_than_64_are_refused() {
    let gpu = common::gpu().unwrap();
    let logits = Logits::new(&gpu, &[vec![0.0; 100], vec![0.0; 100]], 0);
    let mut values = Buffer::zeroed(&gpu, 4096).unwrap();
    let mut ids = Buffer::zeroed(&gpu, 4096).unwrap();
    let mut refused = |k: usize, out: usize, ids_len: usize| {
        let out = MatMut::dense(values.view_mut(), Float::F32, 2, out).unwrap();
        let ids = ids.view_mut().cast().part(0, ids_len);
        let refused = top_k(&gpu, logits.mat(), k, out, ids);
        assert!(matches!(refused, Err(kernels::Error::Shape { .. })), "{refused:?}");
    };
    refused(MOST_TOP_K + 1, MOST_TOP_K + 1, 2 * MOST_TOP_K + 2);
    refused(10, 9, 20);
    refused(10, 10, 19);
    let few = Logits::new(&gpu, &[vec![0.0; 5]], 0);
    let out = MatMut::dense(values.view_mut(), Float::F32, 1, 6).unwrap();
    assert!(top_k(&gpu, few.mat(), 6, out, ids.view_mut().cast().part(0, 6)).is_err());
}
