//! Long contexts in pieces: a softmax that need not see all keys at once.
//!
//! Keys are taken in *splits*, [`SPLIT`] absolute positions each. A split gives a row its largest score, the
//! sum of its weights `exp(score - largest)`, and the values in those weights, not divided yet. Two
//! neighbouring splits become one by bringing both to the larger of the two maxima, which is the step
//! of FlashAttention (Dao et al. 2022) and, with the splits dealt to threads, Flash-Decoding (Dao et
//! al. 2023).
//!
//! Splits begin where positions say, and are merged from the left, one by one. So it makes no
//! difference to a bit of the result whether one thread took all splits in turn or each was somebody
//! else's; and a row that sees no key of a split leaves it out.

use std::ops::Range;

use crate::cpu::lanes;
use crate::ops::TILE;

/// Keys of a split. Scores of a full item over it fit a level-2 cache beside a split's tiles.
pub(crate) const SPLIT: usize = 512;

/// Tiles of a split.
pub(crate) const SPLIT_TILES: usize = SPLIT / TILE;

/// What one row has seen of some keys, beside its weighted values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Totals {
    /// The largest score.
    pub max: f32,
    /// The sum of `exp(score - max)`.
    pub sum: f32,
}

/// The splits that hold one of `keys`.
#[inline(always)]
pub(super) fn splits_of(keys: &Range<usize>) -> Range<usize> {
    keys.start / SPLIT..keys.end.div_ceil(SPLIT)
}

/// The part of `keys` that lies in a split.
#[inline(always)]
pub(super) fn within(keys: &Range<usize>, split: usize) -> Range<usize> {
    let start = keys.start.max(split * SPLIT);
    start..keys.end.min((split + 1) * SPLIT).max(start)
}

/// Add what a row has seen of the next keys, `more` and `more_values`, to what it has seen so far.
/// Both are weighed against their own maximum; the result is against the larger one.
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
