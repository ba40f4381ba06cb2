//! What the op tests share: runtimes of every kind, views, comparisons, fixtures.

#![allow(dead_code, unused_imports)] // Every test binary uses its own part of this.

mod compare;
mod goldens;

pub use compare::*;
pub use goldens::*;

use l1_tensor::cpu::Isa;
use l1_tensor::{Runtime, RuntimeOptions, Tensor, bf16};

/// A runtime with this instruction set and so many threads.
pub fn runtime(isa: Isa, threads: usize) -> Runtime {
    Runtime::new(RuntimeOptions { isa: Some(isa), threads: Some(threads), ..RuntimeOptions::cpu() })
        .expect("an instruction set from Isa::available() runs here")
}

/// One runtime for every instruction set of this processor, with one thread.
pub fn every_isa() -> Vec<Runtime> {
    Isa::available().map(|isa| runtime(isa, 1)).collect()
}

/// The bits of a tensor's elements: for "the same to the last bit".
pub fn bits(t: &Tensor) -> Vec<u32> {
    t.to_vec_f32().expect("a float tensor").iter().map(|v| v.to_bits()).collect()
}

/// What rounding to bf16 makes of these.
pub fn rounded(v: &[f32]) -> Vec<f32> {
    v.iter().map(|v| bf16::from_f32(*v).to_f32()).collect()
}

/// A cheap stream of numbers between -1 and 1, for sizes where proptest would be slow.
pub fn noise(n: usize, seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        // xorshift64 (Marsaglia, 2003).
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    };
    (0..n).map(|_| next()).collect()
}
