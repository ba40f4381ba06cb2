//! The CPU that stands in for a device runs plain kernels as a device would.

mod common;

use std::sync::Arc;

use kernels::{Args, Buffer, Gpu, Launch};

const PLAIN: &str = r#"
#include "types.cuh"
#include "reduce.cuh"

extern "C" __global__ void scale(float* x, float by, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        x[i] *= by;
    }
}

// out[block] = the sum of the block's part of x.
extern "C" __global__ void sums(const float* __restrict__ x, float* __restrict__ out, int n) {
    __shared__ float partial[32];
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    const float sum = block_reduce<Sum>(i < n ? x[i] : 0.0f, partial);
    if (threadIdx.x == 0) {
        out[blockIdx.x] = sum;
    }
}
"#;

fn gpu() -> Arc<Gpu> {
    let gpu = common::emulated();
    gpu.load_text("plain", PLAIN).unwrap();
    gpu
}

#[test]
fn every_element_is_reached_once() {
    let gpu = gpu();
    let x: Vec<f32> = (0..1000).map(|i| i as f32).collect();
    let mut on_device = Buffer::from_slice(&gpu, &x).unwrap();
    let args = Args::new().view_mut(&on_device.view_mut()).float(3.0).int(1000);
    // SAFETY: the kernel's arguments; 1000 elements.
    unsafe { Launch::new("plain", "scale", 8, 128).enqueue(&gpu, args) }.unwrap();
    let expected: Vec<f32> = x.iter().map(|x| x * 3.0).collect();
    assert_eq!(on_device.to_vec::<f32>().unwrap(), expected);
}

#[test]
fn a_block_adds_up_its_part() {
    let gpu = gpu();
    let x: Vec<f32> = (0..1000).map(|i| (i % 17) as f32).collect();
    let on_device = Buffer::from_slice(&gpu, &x).unwrap();
    let sums = common::under_every_order(|| {
        let mut out = Buffer::zeroed(&gpu, 4 * 4).unwrap();
        let args = Args::new().view(on_device.view()).view_mut(&out.view_mut()).int(1000);
        // SAFETY: the kernel's arguments; 1000 elements, 4 blocks.
        unsafe { Launch::new("plain", "sums", 4, 256).enqueue(&gpu, args) }.unwrap();
        out.to_vec::<u8>().unwrap()
    });
    let expected: Vec<f32> = x.chunks(256).map(|part| part.iter().sum()).collect();
    assert_eq!(sums, common::bytes(&expected));
}

#[test]
fn every_file_with_kernels_compiles_for_a_cpu() {
    gpu().compile_all().unwrap();
}
