//! Distributions over tokens, and sampling from them.
//!
//! Sampling is a walk: the weights are laid end to end in the order of token ids, and the token is taken in which the
//! point at `u` times the whole length falls. 150,000 tokens are a long walk, so the sums of [`BLOCK`] neighbours are
//! stored: the block of the point is found first, and only that block is walked.

use std::hint::black_box;

use l1_tensor::cpu::Isa;
use l1_tensor::cpu::lanes::{accumulate, dispatch, fold_lanes};

use crate::RowError;

/// Number of tokens whose weights are summed up together, and of logits whose maximum is stored: large enough that the
/// sums are few, small enough that reading a block takes little time.
pub(crate) const BLOCK: usize = 64;

/// A distribution over tokens, as [`crate::Sampler`] makes it. Tokens are in the order of their ids whatever the
/// filters did, so a draw does not depend on how the filters found them.
///
/// Weights ("shares") are `e^((logit - max) / temperature)`: the largest is 1, and their sum is taken in f64.
///
/// The default distribution is empty. A sampler returns no such distribution: a row without tokens is a [`RowError`].
#[derive(Clone, Debug, Default)]
pub struct Distribution {
    /// Tokens of `shares`, ascending; unless `dense`, where share `i` is that of token `i`.
    ids: Vec<u32>,
    /// Weights, not probabilities: those are `share / total`. May be 0.
    shares: Vec<f32>,
    dense: bool,
    /// Sum of each [`BLOCK`] of shares.
    sums: Vec<f64>,
    /// Sum of `sums`, from first to last.
    total: f64,
}

impl Distribution {
    /// A distribution with all probability on one token.
    pub fn point(token: u32) -> Self {
        let mut point = Self::default();
        point.become_point(token);
        point
    }

    /// Creates a distribution from weights, ids ascending. Weights need not sum to 1; one that is not positive and
    /// finite counts as 0.
    ///
    /// # Errors
    /// [`RowError::NothingLeft`] if no token has a positive, finite weight.
    pub fn from_shares(shares: &[(u32, f32)]) -> Result<Self, RowError> {
        let mut made = Self::default();
        let positive = shares.iter().filter(|(_, share)| *share > 0.0 && share.is_finite());
        made.become_sparse(Isa::Portable, positive.copied());
        if made.shares.is_empty() { Err(RowError::NothingLeft) } else { Ok(made) }
    }

    /// Renames the tokens. Tokens that get the same id become one, with both probabilities. Allocates nothing if the
    /// new ids ascend, too.
    pub fn rename(&mut self, id: impl Fn(u32) -> u32) {
        if self.dense {
            self.ids.extend(0..self.shares.len() as u32);
            self.dense = false;
        }
        self.ids.iter_mut().for_each(|own| *own = id(*own));
        if self.ids.is_sorted_by(|a, b| a < b) {
            return;
        }
        let mut renamed: Vec<(u32, f32)> = self.shares().collect();
        renamed.sort_by_key(|(id, _)| *id);
        renamed.dedup_by(|(id, share), (kept, sum)| {
            let same = id == kept;
            if same {
                *sum += *share;
            }
            same
        });
        self.become_sparse(Isa::Portable, renamed);
    }

    /// Probability of a token; 0 for one that is not in the distribution.
    pub fn prob(&self, token: u32) -> f64 {
        let at =
            if self.dense { Some(token as usize) } else { self.ids.binary_search(&token).ok() };
        at.and_then(|at| self.shares.get(at)).map_or(0.0, |share| f64::from(*share) / self.total)
    }

    /// Number of tokens with a probability above 0.
    pub fn len(&self) -> usize {
        self.shares.iter().filter(|share| **share > 0.0).count()
    }

    /// Whether no token has a probability above 0, which is true of no distribution of a sampler.
    pub fn is_empty(&self) -> bool {
        self.total == 0.0
    }

    /// Tokens with their probabilities, ids ascending, each above 0.
    pub fn iter(&self) -> impl Iterator<Item = (u32, f64)> + '_ {
        self.shares().map(|(id, share)| (id, f64::from(share) / self.total))
    }

    /// Tokens with their weights, ids ascending, each above 0.
    fn shares(&self) -> impl Iterator<Item = (u32, f32)> + '_ {
        let there = self.shares.iter().enumerate().filter(|(_, share)| **share > 0.0);
        there.map(|(i, share)| (self.id(i), *share))
    }

    /// Token at `u` in `[0, 1)`: the first at which the summed probability exceeds `u`.
    ///
    /// Never a token of weight 0: sums are rounded, so the walk may reach the end of the block without reaching the
    /// point; then it is the last token of the block with a weight.
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

    /// Token at `u` of the normalised `max(0, self - other)`, which replaces a rejected draft. If that is 0 everywhere
    /// (the two are equal, so only rounding can reject), the token is drawn from `self`.
    pub fn draw_residual(&self, other: &Distribution, u: f64) -> u32 {
        // exercise l4.draw
        // Both are in the order of ids, so one look ahead into `other` is enough.
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

    /// Token of share `i`.
    fn id(&self, i: usize) -> u32 {
        if self.dense { i as u32 } else { self.ids.get(i).copied().unwrap_or(0) }
    }
}

/// Filling a distribution in the memory that it has.
impl Distribution {
    /// Puts all probability on one token.
    pub(crate) fn become_point(&mut self, token: u32) {
        self.become_sparse(Isa::Portable, [(token, 1.0)]);
    }

    /// Becomes these tokens, ids ascending, with these shares.
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

    /// Becomes all `vocab` tokens. `fill` writes the shares and the sums of their blocks, whose contents are unknown
    /// before. Returns the shares and their sum.
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

/// Sum of the shares of a block. Its order is that of the lanes, whatever the instruction set.
#[inline(always)]
pub(crate) fn sum_of(block: &[f32]) -> f64 {
    fold_lanes(accumulate(block, 0.0, |sum: f64, share| sum + f64::from(share)), |a, b| a + b)
}

dispatch! {
    /// Sum of each block.
    pub(crate) fn sum_blocks<const FMA: bool>(shares: &[f32], sums: &mut [f64]) {
        for (sum, block) in sums.iter_mut().zip(shares.chunks(BLOCK)) {
            *sum = sum_of(black_box(block)); // One block at a time: see `block_maxima`.
        }
    }
}
