//! The gates of the exercises of layer 0: each needs nothing that comes after it, and compares with
//! arithmetic that is written out here.

#[path = "../common/mod.rs"]
mod common;

mod kv_write;
mod online_softmax;
mod reduce;
mod rms_norm;
mod rope;
mod split_kv;

use std::sync::Arc;

use half::bf16;
use kernels::{Buffer, Float, Gpu, Mat, MatMut};

/// The device that the gates run on.
fn gpu() -> Arc<Gpu> {
    common::gpu().expect("a device, or a CPU that stands in for one")
}

/// Numbers between -1 and 1 that look like nothing in particular, the same ones for a seed.
fn numbers(seed: u64, n: usize) -> Vec<f32> {
    let mut state = seed.wrapping_mul(2).wrapping_add(1);
    let mut next = || {
        // Steele and Vigna's mixing function: any will do here.
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) >> 40
    };
    (0..n).map(|_| next() as f32 / (1 << 23) as f32 - 1.0).collect()
}

/// Rounded to bf16, as bits.
fn to_bf16(values: &[f32]) -> Vec<u16> {
    values.iter().map(|v| bf16::from_f32(*v).to_bits()).collect()
}

fn from_bf16(bits: &[u16]) -> Vec<f32> {
    bits.iter().map(|b| bf16::from_bits(*b).to_f32()).collect()
}

/// The same numbers on the device.
fn upload(gpu: &Arc<Gpu>, values: &[f32]) -> Buffer {
    Buffer::from_slice(gpu, values).unwrap()
}

/// A dense f32 matrix.
fn mat(buffer: &Buffer, rows: usize, width: usize) -> Mat<'_> {
    Mat::dense(buffer.view(), Float::F32, rows, width).unwrap()
}

/// A dense f32 matrix, to write.
fn mat_mut(buffer: &mut Buffer, rows: usize, width: usize) -> MatMut<'_> {
    MatMut::dense(buffer.view_mut(), Float::F32, rows, width).unwrap()
}

/// Panics with the first element that is further off than `tolerance`.
fn assert_close(got: &[f32], expected: &[f32], tolerance: f32) {
    assert_eq!(got.len(), expected.len());
    for (i, (got, expected)) in got.iter().zip(expected).enumerate() {
        let off = (got - expected).abs();
        assert!(off <= tolerance, "element {i} is {got}, and should be {expected}");
    }
}
