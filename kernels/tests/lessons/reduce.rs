//! `l0.reduce`.

use std::sync::Arc;

use kernels::{Args, Gpu, Launch};

use crate::common::under_every_order;
use crate::{numbers, upload};

const KERNELS: &str = r#"
#include "reduce.cuh"

// out[t] = what thread t gets of its warp.
extern "C" __global__ void warp_sums(const float* x, float* out) {
    out[threadIdx.x] = warp_reduce<Sum>(x[threadIdx.x]);
}

extern "C" __global__ void warp_maxima(const float* x, float* out) {
    out[threadIdx.x] = warp_reduce<Max>(x[threadIdx.x]);
}

// Two sums, one directly after the other, in the same shared memory.
extern "C" __global__ void two_block_sums(const float* x, float* out) {
    __shared__ float partial[WARP];
    const int t = threadIdx.x;
    const int n = blockDim.x;
    out[t] = block_reduce<Sum>(x[t], partial);
    out[n + t] = block_reduce<Sum>(x[n + t], partial);
}

extern "C" __global__ void block_maxima(const float* x, float* out) {
    __shared__ float partial[WARP];
    out[threadIdx.x] = block_reduce<Max>(x[threadIdx.x], partial);
}
"#;

fn run(gpu: &Arc<Gpu>, kernel: &'static str, threads: usize, x: &[f32]) -> Vec<f32> {
    gpu.load_text("lesson", KERNELS).unwrap();
    let x_on_device = upload(gpu, x);
    let bytes = under_every_order(|| {
        let mut out = upload(gpu, &vec![f32::NAN; x.len()]);
        let args = Args::new().view(x_on_device.view()).view_mut(&out.view_mut());
        // SAFETY: the kernel's arguments; as many elements as it reads and writes.
        unsafe { Launch::new("lesson", kernel, 1, threads).enqueue(gpu, args) }.unwrap();
        out.to_vec::<u8>().unwrap()
    });
    bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
}

/// The butterfly, written for 32 lanes in an array.
fn butterfly(lanes: &[f32]) -> f32 {
    let mut lanes = lanes.to_vec();
    for bit in [16, 8, 4, 2, 1] {
        lanes = (0..32).map(|lane| lanes[lane] + lanes[lane ^ bit]).collect();
    }
    lanes[0]
}

#[test]
fn every_lane_gets_the_sum_of_its_own_warp() {
    let gpu = crate::gpu();
    // Whole numbers: their sums are exact in any order.
    let x: Vec<f32> = (0..96).map(|i| (i * i % 61) as f32).collect();
    let got = run(&gpu, "warp_sums", 96, &x);
    for (warp, got) in got.chunks(32).enumerate() {
        let expected: f32 = x[warp * 32..][..32].iter().sum();
        assert_eq!(got, vec![expected; 32], "warp {warp}");
    }
}

#[test]
fn a_maximum_is_found_in_whatever_lane_it_is() {
    let gpu = crate::gpu();
    for lane in [0, 1, 7, 15, 16, 30, 31] {
        let mut x = vec![-5.0; 32];
        x[lane] = -2.0;
        assert_eq!(run(&gpu, "warp_maxima", 32, &x), vec![-2.0; 32], "in lane {lane}");
    }
}

#[test]
fn every_thread_gets_the_sum_of_the_block_and_then_the_next_one() {
    let gpu = crate::gpu();
    for threads in [32, 96, 256, 1024] {
        let x: Vec<f32> = (0..2 * threads).map(|i| (i * i % 61) as f32).collect();
        let got = run(&gpu, "two_block_sums", threads, &x);
        for (which, (got, x)) in got.chunks(threads).zip(x.chunks(threads)).enumerate() {
            let expected: f32 = x.iter().sum();
            assert_eq!(got, vec![expected; threads], "sum {which} of {threads} threads");
        }
    }
}

#[test]
fn a_block_of_negative_numbers_has_a_negative_maximum() {
    let gpu = crate::gpu();
    for threads in [32, 64, 352] {
        let x: Vec<f32> = (0..threads).map(|i| -1.0 - (i * 37 % threads) as f32).collect();
        assert_eq!(run(&gpu, "block_maxima", threads, &x), vec![-1.0; threads]);
    }
}

#[test]
fn the_additions_are_those_of_a_butterfly_the_larger_bits_first() {
    let gpu = crate::gpu();
    for seed in 0..4 {
        let x = numbers(seed, 32);
        assert_eq!(run(&gpu, "warp_sums", 32, &x), vec![butterfly(&x); 32]);
    }
}
