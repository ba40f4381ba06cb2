//! From logits to tokens, against definitions that sort.

#[path = "../common/mod.rs"]
mod common;
mod draws;
mod largest;
mod passes;

use std::sync::Arc;

use kernels::{Buffer, Float, Gpu, Mat};

/// Rows of logits in device memory, some elements apart.
struct Logits {
    memory: Buffer,
    rows: usize,
    width: usize,
    stride: usize,
}

impl Logits {
    fn new(gpu: &Arc<Gpu>, rows: &[Vec<f32>], apart: usize) -> Self {
        let width = rows[0].len();
        let mut spread = Vec::new();
        for row in rows {
            assert_eq!(row.len(), width);
            spread.extend_from_slice(row);
            spread.resize(spread.len() + apart, 1e30);
        }
        spread.truncate(spread.len() - apart);
        let memory = Buffer::from_slice(gpu, &spread).unwrap();
        Self { memory, rows: rows.len(), width, stride: width + apart }
    }

    fn mat(&self) -> Mat<'_> {
        Mat::new(self.memory.view(), Float::F32, self.rows, self.width, self.stride).unwrap()
    }
}

/// Random numbers: xorshift.
struct Random(u64);

impl Random {
    fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// At least 0 and below 1, of 24 bits.
    fn uniform(&mut self) -> f32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 40) as f32 / (1u64 << 24) as f32
    }

    /// Logits as a model has them: a bell of a width, and a few above it.
    fn logits(&mut self, width: usize, spread: f32) -> Vec<f32> {
        let mut bell = || (0..6).map(|_| self.uniform()).sum::<f32>() - 3.0;
        let mut row: Vec<f32> = (0..width).map(|_| spread * bell()).collect();
        for _ in 0..width / 100 {
            let at = (self.uniform() * width as f32) as usize;
            row[at] += 2.0 * spread;
        }
        row
    }

    /// Of few values: many are equal.
    fn steps(&mut self, width: usize, values: usize) -> Vec<f32> {
        (0..width).map(|_| (self.uniform() * values as f32).floor() * 0.5).collect()
    }
}
