//! What is left of a row of logits: tokens with their shares, and a draw from them.
//!
//! A draw is a walk: lay the shares end to end in the order of token ids, throw a dart at `u` times the whole length,
//! and see where it sticks. 150,000 tokens are a long walk, so the sums of [`BLOCK`] neighbours are kept: the dart's
//! block is found first, and only that block is walked.

use std::hint::black_box;

use l1_tensor::cpu::Isa;
use l1_tensor::cpu::lanes::{accumulate, dispatch, fold_lanes};

use crate::RowError;

/// Tokens whose shares are summed up together, and logits whose maximum is kept: enough that the sums are few, few
/// enough that a block is read in no time.
pub(crate) const BLOCK: usize = 64;

/// A distribution over tokens. Made by [`crate::Sampler`], in the order of token ids whatever the filters did, so a draw
/// does not depend on how the filters found their tokens.
///
/// Shares are `e^((logit - max) / temperature)`: the largest is 1, and their sum is taken in f64.
///
/// The default one is empty. No sampler makes such a one: a row of which nothing is left is a [`RowError`].
#[derive(Clone, Debug, Default)]
pub struct Distribution {
    /// What `shares` belong to, ascending; unless `dense`, when share `i` is that of token `i`.
    ids: Vec<u32>,
    /// Not probabilities yet: those are `share / total`. May be 0.
    shares: Vec<f32>,
    dense: bool,
    /// The sum of each [`BLOCK`] of shares.
    sums: Vec<f64>,
    /// The sum of `sums`, first to last.
    total: f64,
}

impl Distribution {
    /// All probability on one token.
    pub fn point(token: u32) -> Self {
        let mut point = Self::default();
        point.become_point(token);
        point
    }

    /// From shares, ids ascending. Shares need not sum to 1; one that is not a positive, finite number counts as 0.
    ///
    /// # Errors
    /// [`RowError::NothingLeft`] when nothing has a positive, finite share.
    pub fn from_shares(shares: &[(u32, f32)]) -> Result<Self, RowError> {
        let mut made = Self::default();
        let positive = shares.iter().filter(|(_, share)| *share > 0.0 && share.is_finite());
        made.become_sparse(Isa::Portable, positive.copied());
        if made.shares.is_empty() { Err(RowError::NothingLeft) } else { Ok(made) }
    }

    /// The probability of a token; 0 for one that is not there.
    pub fn prob(&self, token: u32) -> f64 {
        let at =
            if self.dense { Some(token as usize) } else { self.ids.binary_search(&token).ok() };
        at.and_then(|at| self.shares.get(at)).map_or(0.0, |share| f64::from(*share) / self.total)
    }

    /// How many tokens have a probability above 0.
    pub fn len(&self) -> usize {
        self.shares.iter().filter(|share| **share > 0.0).count()
    }

    /// Whether no token has a probability above 0, which no distribution of a sampler is.
    pub fn is_empty(&self) -> bool {
        self.total == 0.0
    }

    /// Tokens with their probabilities, ids ascending, each above 0.
    pub fn iter(&self) -> impl Iterator<Item = (u32, f64)> + '_ {
        let there = self.shares.iter().enumerate().filter(|(_, share)| **share > 0.0);
        there.map(|(i, share)| (self.id(i), f64::from(*share) / self.total))
    }

    /// The token at `u` in `[0, 1)`: the first at which the summed probability exceeds it.
    ///
    /// Never a token without a share: sums are rounded, so the walk may come to the end of the block that the dart is
    /// in without having reached it, and then the last token with a share is meant.
    pub fn draw(&self, u: f64) -> u32 {
        // exercise l4.draw
        let dart = u * self.total;
        let mut walked = 0.0;
        let mut found = 0;
        for (sum, (b, block)) in self.sums.iter().zip(self.shares.chunks(BLOCK).enumerate()) {
            if walked + sum <= dart {
                walked += sum;
                continue;
            }
            for (i, share) in block.iter().enumerate().filter(|(_, share)| **share > 0.0) {
                found = b * BLOCK + i;
                walked += f64::from(*share);
                if walked > dart {
                    break;
                }
            }
            break;
        }
        self.id(found)
        // end of exercise
    }

    /// The token at `u` of `max(0, self - other)`, made a distribution again; what a rejected draft is replaced by. Where
    /// nothing is left (the two are equal, so nothing is ever rejected but by rounding), of `self`.
    pub fn draw_residual(&self, other: &Distribution, u: f64) -> u32 {
        // exercise l4.draw
        // Both walk in the order of ids, so one look ahead into `other` is enough.
        let residual = || {
            let mut other = other.iter().peekable();
            self.iter().filter_map(move |(id, p)| {
                while other.next_if(|(behind, _)| *behind < id).is_some() {}
                let q = other.next_if(|(same, _)| *same == id).map_or(0.0, |(_, q)| q);
                (p > q).then_some((id, p - q))
            })
        };
        let total: f64 = residual().map(|(_, r)| r).sum();
        let dart = u * total;
        let mut walked = 0.0;
        let mut found = None;
        for (id, r) in residual() {
            found = Some(id);
            walked += r;
            if walked > dart {
                break;
            }
        }
        found.unwrap_or_else(|| self.draw(u))
        // end of exercise
    }

    /// The token that share `i` belongs to.
    fn id(&self, i: usize) -> u32 {
        if self.dense { i as u32 } else { self.ids.get(i).copied().unwrap_or(0) }
    }
}

/// How a sampler fills one: into the memory it has already.
impl Distribution {
    /// All probability on one token.
    pub(crate) fn become_point(&mut self, token: u32) {
        self.become_sparse(Isa::Portable, [(token, 1.0)]);
    }

    /// These tokens, ids ascending, with these shares.
    pub(crate) fn become_sparse(&mut self, isa: Isa, tokens: impl IntoIterator<Item = (u32, f32)>) {
        self.dense = false;
        self.ids.clear();
        self.shares.clear();
        for (id, share) in tokens {
            self.ids.push(id);
            self.shares.push(share);
        }
        self.sums.clear();
        self.sums.resize(self.shares.len().div_ceil(BLOCK), 0.0);
        sum_blocks(isa, &self.shares, &mut self.sums);
        self.total = self.sums.iter().sum();
    }

    /// All `vocab` tokens. `fill` gets the shares and the sums of their blocks to write, whose contents are unknown.
    /// Returns the shares and their sum.
    pub(crate) fn become_dense(
        &mut self,
        vocab: usize,
        fill: impl FnOnce(&mut [f32], &mut [f64]),
    ) -> (&[f32], f64) {
        self.dense = true;
        self.ids.clear();
        self.shares.resize(vocab, 0.0);
        self.sums.resize(vocab.div_ceil(BLOCK), 0.0);
        fill(&mut self.shares, &mut self.sums);
        self.total = self.sums.iter().sum();
        (&self.shares, self.total)
    }
}

/// The sum of the shares of a block. Its order is that of the lanes, whatever the instruction set.
#[inline(always)]
pub(crate) fn sum_of(block: &[f32]) -> f64 {
    fold_lanes(accumulate(block, 0.0, |sum: f64, share| sum + f64::from(share)), |a, b| a + b)
}

dispatch! {
    /// The sum of each block.
    pub(crate) fn sum_blocks<const FMA: bool>(shares: &[f32], sums: &mut [f64]) {
        for (sum, block) in sums.iter_mut().zip(shares.chunks(BLOCK)) {
            *sum = sum_of(black_box(block)); // One block at a time: see `block_maxima`.
        }
    }
}
