//! What tests are about: rows of logits of many shapes, and requests.

use l1_tensor::cpu::Isa;
use l1_tensor::{Runtime, RuntimeOptions, Tensor};
use l4_sampler::{DrawKey, History, Row, SamplingParams, TokenMask};

/// A runtime of this kind.
pub fn runtime(isa: Isa, threads: usize) -> Runtime {
    let (isa, threads) = (Some(isa), Some(threads));
    Runtime::new(RuntimeOptions { threads, isa, ..Default::default() }).unwrap()
}

/// Rows as one tensor.
pub fn tensor(rows: &[Vec<f32>]) -> Tensor {
    Tensor::from_slice(&rows.concat(), &[rows.len(), rows[0].len()]).unwrap()
}

/// SplitMix64: numbers that are the same everywhere.
pub struct Noise(pub u64);

impl Noise {
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ z >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ z >> 31
    }

    /// In `[0, 1)`.
    pub fn uniform(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// One of `0..n`.
    pub fn below(&mut self, n: usize) -> usize {
        (self.uniform() * n as f64) as usize
    }

    /// Nearly normal: the sum of twelve.
    pub fn normal(&mut self) -> f32 {
        ((0..12).map(|_| self.uniform()).sum::<f64>() - 6.0) as f32
    }
}

/// How the logits of a row lie.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Shape {
    /// Normal, as wide as a model's.
    Normal,
    /// Few different values.
    Ties,
    /// All the same.
    Flat,
    /// One far above the others.
    Peaked,
    /// A head that falls off slowly.
    Words,
    /// Nearly as large as floats get.
    Huge,
    /// Normal, with NaN and both infinities strewn in.
    Damaged,
    /// Nearly everything is -inf.
    Masked,
}

pub const SHAPES: [Shape; 8] = [
    Shape::Normal,
    Shape::Ties,
    Shape::Flat,
    Shape::Peaked,
    Shape::Words,
    Shape::Huge,
    Shape::Damaged,
    Shape::Masked,
];

impl Shape {
    /// A row of `vocab` logits.
    pub fn row(self, vocab: usize, seed: u64) -> Vec<f32> {
        let mut noise = Noise(seed);
        let mut row: Vec<f32> = (0..vocab).map(|_| noise.normal() * 3.0).collect();
        let strewn = vocab.div_ceil(10);
        match self {
            Shape::Normal => {}
            Shape::Ties => row.iter_mut().for_each(|x| *x = (*x / 2.0).round() * 2.0),
            Shape::Flat => row.fill(-0.75),
            Shape::Peaked => row[noise.below(vocab)] = 40.0,
            Shape::Words => {
                for rank in 1..=strewn {
                    row[noise.below(vocab)] = 14.0 - 1.2 * (rank as f32).ln();
                }
            }
            Shape::Huge => row.iter_mut().for_each(|x| *x = (*x * 1e38).clamp(-2e38, 2e38)),
            Shape::Damaged => {
                for bad in [f32::NAN, f32::NEG_INFINITY] {
                    (0..strewn).for_each(|_| row[noise.below(vocab)] = bad);
                }
                if seed.is_multiple_of(3) {
                    (0..vocab.div_ceil(100)).for_each(|_| row[noise.below(vocab)] = f32::INFINITY);
                }
            }
            Shape::Masked => {
                let left = noise.below(vocab);
                for (i, x) in row.iter_mut().enumerate() {
                    if i != left && noise.uniform() < 0.98 {
                        *x = f32::NEG_INFINITY;
                    }
                }
            }
        }
        row
    }
}

/// A request and where it is: all that a [`Row`] borrows.
#[derive(Clone, Debug)]
pub struct Asked {
    pub params: SamplingParams,
    pub history: History,
    pub ends: Vec<u32>,
    pub mask: Option<TokenMask>,
    pub key: DrawKey,
}

impl Asked {
    /// A request that has seen nothing.
    pub fn new(params: SamplingParams) -> Self {
        let key = DrawKey { seed: 2026, sample: 0, position: 0 };
        Self { params, history: History::default(), ends: Vec::new(), mask: None, key }
    }

    /// At this position, or with this seed.
    pub fn keyed(&self, seed: u64, position: u32) -> Self {
        Self { key: DrawKey { seed, position, ..self.key }, ..self.clone() }
    }

    pub fn row(&self) -> Row<'_> {
        Row {
            params: &self.params,
            history: &self.history,
            ends: &self.ends,
            mask: self.mask.as_ref(),
            key: self.key,
        }
    }
}

/// A request of any kind for a model of `vocab` tokens. What `stages` says may be asked for is asked for more often
/// than not.
pub fn asked(stages: Stages, vocab: usize, seed: u64) -> Asked {
    let mut noise = Noise(seed);
    let mut params = SamplingParams { temperature: 1.0, ..SamplingParams::default() };
    let mut history = History::default();
    let mut ends = Vec::new();
    let mut mask = None;
    if stages.temperature {
        params.temperature = [1e-4, 0.3, 0.7, 1.0, 1.3, 8.0][noise.below(6)];
    }
    if stages.top_k {
        let some = 1 + noise.below(vocab);
        params.top_k = [1, 2, 50, some, vocab, vocab + 7][noise.below(6)];
    }
    let mut p = |on| {
        if on { [0.0, 0.1, 0.5, 0.9, 0.99, noise.uniform() as f32][noise.below(6)] } else { 1.0 }
    };
    params.top_p = p(stages.top_p);
    params.typical_p = p(stages.typical_p);
    if stages.min_p {
        params.min_p = [1.0, 0.5, 0.05, 1e-3, noise.uniform() as f32][noise.below(5)];
    }
    if stages.before {
        let mut any =
            |n: usize| -> Vec<u32> { (0..n).map(|_| noise.below(vocab) as u32).collect() };
        let (biased, prompt, answer) = (any(3), any(20), any(10));
        params.banned_tokens = any(2);
        ends = any(2);
        params.logit_bias = biased.into_iter().zip([2.5, -1.0, f32::NEG_INFINITY]).collect();
        params.min_tokens = 5 + noise.below(10);
        params.repetition_penalty = [1.0, 1.3, 0.8][noise.below(3)];
        params.presence_penalty = [0.0, 0.5, -0.5][noise.below(3)];
        params.frequency_penalty = [0.0, 0.25, -0.25][noise.below(3)];
        history = History::new(&prompt, 10);
        answer.into_iter().for_each(|token| history.push(token));
        if noise.below(4) == 0 {
            params.allowed_tokens = Some((0..vocab as u32).step_by(3).collect());
        }
        if noise.below(3) == 0 {
            let mut allowed = TokenMask::none(vocab);
            (0..vocab as u32).filter(|_| noise.below(2) == 0).for_each(|id| allowed.allow(id));
            mask = Some(allowed);
        }
    }
    let key = DrawKey { seed: noise.bits(), sample: 1, position: noise.below(4000) as u32 };
    Asked { params, history, ends, mask, key }
}

/// Which stages a request may use.
#[derive(Clone, Copy, Debug, Default)]
pub struct Stages {
    /// Bias, bans, guide, penalties.
    pub before: bool,
    pub temperature: bool,
    pub top_k: bool,
    pub top_p: bool,
    pub min_p: bool,
    pub typical_p: bool,
}
