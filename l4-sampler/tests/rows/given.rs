//! Rows and requests that the tests of this program share.

use l4_sampler::{DrawKey, History, Row, SamplingParams, TokenMask};
use proptest::prelude::*;

/// -inf: a token that is not to be chosen.
pub const OUT: f32 = f32::NEG_INFINITY;

/// A row with everything in it that a comparison or an addition might trip over.
pub fn odd_row() -> Vec<f32> {
    let quiet = f32::from_bits(0x7fc1_2345);
    let mut row =
        vec![0.0, -0.0, 1.5, -1.5, OUT, f32::INFINITY, f32::NAN, quiet, f32::MAX, f32::MIN];
    row.extend([f32::MIN_POSITIVE, 1e-45, -1e-45, 3.0, 3.0, 3.0]);
    // More than two words of a mask, and not whole ones.
    row.extend((0..60).map(|i| (i as f32 * 0.7).sin() * 5.0));
    row
}

/// The same row with ordinary numbers only.
pub fn plain_row() -> Vec<f32> {
    (0..76).map(|i| (i as f32 * 0.7).sin() * 5.0).collect()
}

/// A row as a request without history, guide or ends.
pub fn row<'a>(params: &'a SamplingParams, history: &'a History) -> Row<'a> {
    let key = DrawKey { seed: 0, sample: 0, position: 0 };
    Row { params, history, ends: &[], mask: None, key }
}

/// A mask for `vocab` tokens that allows these.
pub fn mask_of(vocab: usize, allowed: impl IntoIterator<Item = u32>) -> TokenMask {
    let mut mask = TokenMask::none(vocab);
    for token in allowed {
        mask.allow(token);
    }
    mask
}

/// The tokens that are left.
pub fn left(row: &[f32]) -> Vec<usize> {
    (0..row.len()).filter(|i| row[*i] > OUT).collect()
}

/// Rows of 1 to 80 logits: ordinary numbers, many of them equal to others, some of them removed.
pub fn logits() -> impl Strategy<Value = Vec<f32>> {
    let one = prop_oneof![
        6 => -8.0f32..8.0,
        2 => (-4i8..4).prop_map(f32::from),
        1 => Just(OUT),
    ];
    prop::collection::vec(one, 1..80)
}

/// Rows with at least one token that can be chosen.
pub fn logits_with_some_left() -> impl Strategy<Value = Vec<f32>> {
    (logits(), any::<prop::sample::Index>()).prop_map(|(mut row, at)| {
        let at = at.index(row.len());
        if row[at] == OUT {
            row[at] = 0.25;
        }
        row
    })
}
