//! What the op tests share: runtimes of every kind, views, comparisons, fixtures.

#![allow(dead_code)] // Every test binary uses its own part of this.

use std::path::PathBuf;

use l1_tensor::cpu::Isa;
use l1_tensor::safetensors::SafetensorsFile;
use l1_tensor::{Runtime, RuntimeOptions, Tensor, bf16};

/// A runtime with this instruction set and so many threads.
pub fn runtime(isa: Isa, threads: usize) -> Runtime {
    Runtime::new(RuntimeOptions {
        isa: Some(isa),
        threads: Some(threads),
        ..RuntimeOptions::default()
    })
    .expect("an instruction set from Isa::available() runs here")
}

/// One runtime for every instruction set of this processor, with one thread.
pub fn every_isa() -> Vec<Runtime> {
    Isa::available().map(|isa| runtime(isa, 1)).collect()
}

/// Whether `got` is `want` to within `relative * |want| + absolute`, or the same infinity, or NaN
/// as well.
pub fn close(got: f32, want: f32, relative: f32, absolute: f32) -> bool {
    if got.is_nan() || want.is_nan() {
        return got.is_nan() && want.is_nan();
    }
    got == want || (got - want).abs() <= relative * want.abs() + absolute
}

/// The first element that is not [`close`], in words.
pub fn first_difference(got: &[f32], want: &[f32], relative: f32, absolute: f32) -> Option<String> {
    if got.len() != want.len() {
        return Some(format!("{} elements instead of {}", got.len(), want.len()));
    }
    let i = (0..got.len()).find(|&i| !close(got[i], want[i], relative, absolute))?;
    Some(format!("element {i} is {} instead of {}", got[i], want[i]))
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

/// The repository's fixtures.
pub fn fixture(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../fixtures").join(name)
}

/// The goldens made by `fixtures/reference/make_ops.py`: f64 results of torch, rounded once.
pub struct Goldens {
    file: SafetensorsFile,
}

impl Goldens {
    /// Open `fixtures/ops.safetensors`.
    pub fn open() -> Self {
        Self { file: SafetensorsFile::open(fixture("ops.safetensors")).expect("the fixture") }
    }

    /// The cases of an op: `rms_norm.odd`, `rms_norm.wide` and so on.
    pub fn cases(&self, op: &str) -> Vec<String> {
        let mut cases: Vec<String> = self
            .file
            .names()
            .iter()
            .filter_map(|n| n.strip_suffix(".out"))
            .filter(|n| n.split('.').next() == Some(op))
            .map(str::to_string)
            .collect();
        cases.sort();
        assert!(!cases.is_empty(), "no golden of {op}");
        cases
    }

    /// Tensor `name` of a case.
    pub fn tensor(&self, case: &str, name: &str) -> Tensor {
        self.file.tensor(&format!("{case}.{name}")).expect("a tensor of the fixture")
    }

    /// Tensor `name` of a case, if the case has one.
    pub fn maybe(&self, case: &str, name: &str) -> Option<Tensor> {
        let name = format!("{case}.{name}");
        self.file.contains(&name).then(|| self.file.tensor(&name).expect("a tensor"))
    }

    /// The parameters of a case.
    pub fn parameters(&self, case: &str) -> serde_json::Value {
        let text = &self.file.metadata().expect("metadata")[case];
        serde_json::from_str(text).expect("a JSON object")
    }
}
