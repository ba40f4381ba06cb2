//! Rows of logits that nobody computed.

use std::fmt;
use std::sync::LazyLock;

use l1_tensor::{Result, Tensor};

/// Of Qwen2.5's models.
pub const VOCAB: usize = 151_936;

/// Rows that take turns.
pub const ROWS: usize = 2;

/// What was said before, some of it more than once.
pub static HISTORY: LazyLock<Vec<u32>> = LazyLock::new(|| {
    let mut noise = Noise(99);
    (0..1000).map(|_| (noise.uniform().powi(3) * VOCAB as f64) as u32).collect()
});

/// How the logits of a row lie.
#[derive(Clone, Copy)]
pub enum Shape {
    /// As a language model's do.
    Words,
    /// Normal, with no head.
    Noise,
    /// All equal.
    Flat,
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Shape::Words => "words",
            Shape::Noise => "noise",
            Shape::Flat => "flat",
        })
    }
}

impl Shape {
    /// So many rows of it.
    pub fn tensor(self, rows: usize) -> Result<Tensor> {
        let mut noise = Noise(2026);
        let mut logits = Vec::with_capacity(rows * VOCAB);
        for _ in 0..rows {
            let start = logits.len();
            match self {
                Shape::Flat => logits.resize(start + VOCAB, 1.5),
                Shape::Noise => logits.extend((0..VOCAB).map(|_| noise.normal() as f32 * 3.0)),
                Shape::Words => {
                    logits.extend((0..VOCAB).map(|_| noise.normal() as f32 * 2.5));
                    // The head: rank r is r^-1.5 times as likely as the first.
                    for rank in 1..=300 {
                        let token = (noise.uniform() * VOCAB as f64) as usize;
                        logits[start + token] = 19.0 - 1.5 * f32::ln(rank as f32);
                    }
                }
            }
        }
        Tensor::from_slice(&logits, &[rows, VOCAB])
    }
}

/// SplitMix64.
struct Noise(u64);

impl Noise {
    fn uniform(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ z >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((z ^ z >> 31) >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Box and Muller's way.
    fn normal(&mut self) -> f64 {
        let (u, v) = (1.0 - self.uniform(), self.uniform());
        (-2.0 * u.ln()).sqrt() * (2.0 * std::f64::consts::PI * v).cos()
    }
}
