//! Long contexts in splits: a softmax that does not need all keys at once.
//!
//! Keys are taken in *splits* of [`SPLIT`] absolute positions each. For each row a split yields its largest
//! score, the sum of its weights `exp(score - largest)`, and the values times those weights, not divided yet.
//! To merge two neighbouring splits, both are rescaled to the larger of the two maxima: the step of
//! FlashAttention (Dao et al. 2022) and, with the splits spread over threads, Flash-Decoding (Dao et al.
//! 2023).
//!
//! Splits begin at fixed positions and are merged from the left, one by one. So every bit of the result is
//! the same whether one thread computed all splits in turn or each was computed by another thread. A row that
//! sees no key of a split leaves it out.

use std::ops::Range;

use crate::cpu::lanes;
use crate::ops::TILE;

/// Keys of a split. Scores of a full item over it fit a level-2 cache beside a split's tiles.
pub(crate) const SPLIT: usize = 512;

/// Tiles of a split.
pub(crate) const SPLIT_TILES: usize = SPLIT / TILE;

/// Maximum and sum of one row over some keys, beside its weighted values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Totals {
    /// The largest score.
    pub max: f32,
    /// The sum of `exp(score - max)`.
    pub sum: f32,
}

/// Splits that hold one of `keys`.
#[inline(always)]
pub(super) fn splits_of(keys: &Range<usize>) -> Range<usize> {
    keys.start / SPLIT..keys.end.div_ceil(SPLIT)
}

/// Part of `keys` that lies in a split.
#[inline(always)]
pub(super) fn within(keys: &Range<usize>, split: usize) -> Range<usize> {
    let start = keys.start.max(split * SPLIT);
    start..keys.end.min((split + 1) * SPLIT).max(start)
}

/// Merges the next keys of a row, `more` and `more_values`, into its state so far. Each was weighed against
/// its own maximum; the result is against the larger one.
#[inline(always)]
pub(super) fn merge<const FMA: bool>(
    totals: &mut Totals,
    values: &mut [f32],
    more: Totals,
    more_values: &[f32],
) {
    // exercise l1.attention
    let max = lanes::max(more.max, totals.max);
    let old = lanes::exp::<FMA>(totals.max - max);
    let new = lanes::exp::<FMA>(more.max - max);
    let sum = lanes::mul_add::<FMA>(more.sum, new, totals.sum * old);
    *totals = Totals { max, sum };
    for (x, more) in values.iter_mut().zip(more_values) {
        *x = lanes::mul_add::<FMA>(*more, new, *x * old);
    }
    // end of exercise
}
