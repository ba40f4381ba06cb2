//! What the tests of `linear` share: runtimes, reproducible numbers, packed matrices.
#![allow(dead_code, unused_imports)]

#[path = "../support/compare.rs"]
mod compare;
#[path = "../support/goldens.rs"]
mod goldens;

pub use compare::*;
pub use goldens::*;
use l1_tensor::cpu::Isa;
use l1_tensor::{
    DType, Device, Error, PackedBf16, Result, RowOrder, Runtime, RuntimeOptions, Tensor, Weight,
    bf16,
};

/// A runtime with so many threads on this instruction set.
pub fn runtime(isa: Isa, threads: usize) -> Runtime {
    let options =
        RuntimeOptions { threads: Some(threads), isa: Some(isa), ..RuntimeOptions::cpu() };
    Runtime::new(options).unwrap()
}

/// Numbers in -1..1 with a few zeros among them, from a multiplicative generator. None is so small
/// that a product of two could be subnormal.
pub fn numbers(seed: u64, count: usize) -> Vec<f32> {
    let mut state = seed.wrapping_mul(2).wrapping_add(1);
    (0..count)
        .map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(99_991);
            let v = (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0;
            if state >> 33 & 15 == 0 { 0.0 } else { v }
        })
        .collect()
}

/// The same, rounded to bf16.
pub fn rounded(values: &[f32]) -> Vec<f32> {
    values.iter().map(|v| bf16::from_f32(*v).to_f32()).collect()
}

/// A weight `[n, k]` from row-major values.
pub fn weight(rt: &Runtime, values: &[f32], n: usize, k: usize, order: RowOrder) -> Weight {
    let fill = |i: usize, out: &mut [f32]| -> Result<()> {
        out.copy_from_slice(&values[i * k..][..k]);
        Ok(())
    };
    Weight::Bf16(PackedBf16::pack::<Error>(rt.pool(), n, k, order, &fill).unwrap())
}

/// Activations `[t, k]` in the given dtype.
pub fn activations(values: &[f32], t: usize, k: usize, dtype: DType) -> Tensor {
    match dtype {
        DType::F32 => Tensor::from_slice(values, &[t, k]).unwrap(),
        _ => {
            let v: Vec<bf16> = values.iter().map(|v| bf16::from_f32(*v)).collect();
            Tensor::from_slice(&v, &[t, k]).unwrap()
        }
    }
}

/// Zeros `[t, n]`.
pub fn zeros(t: usize, n: usize, dtype: DType) -> Tensor {
    Tensor::zeros(&[t, n], dtype, Device::Cpu).unwrap()
}

/// The exact bits of every element.
pub fn bits(t: &Tensor) -> Vec<u32> {
    t.to_vec_f32().unwrap().iter().map(|v| v.to_bits()).collect()
}
