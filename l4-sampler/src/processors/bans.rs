//! Bias, bans and masks: which tokens may be sampled at all.
//!
//! They come first, in the order of this file, so that later stages only see tokens that can be sampled. A ban wins
//! over any bias, also over one of +inf. Ids beyond the row are ignored (`validate` has rejected them).

use l1_tensor::cpu::Isa;
use l1_tensor::cpu::lanes::dispatch;

use super::{REMOVED, logit};
use crate::TokenMask;

/// Adds to the logits of some tokens. A bias of -inf is a ban; a token that is given twice gets both.
pub fn add_bias(row: &mut [f32], bias: &[(u32, f32)]) {
    // exercise l4.bans
    for (id, bias) in bias {
        if let Some(x) = row.get_mut(*id as usize) {
            *x += bias;
            // -inf + inf is NaN: a ban and a bias of +inf, in either order. The ban wins.
            if x.is_nan() {
                *x = REMOVED;
            }
        }
    }
    // end of exercise
}

/// Removes all tokens but these. `kept` is scratch memory.
pub fn allow_only(row: &mut [f32], allowed: &[u32], kept: &mut Vec<f32>) {
    // exercise l4.bans
    // Saves the allowed logits, clears the row and restores them: no search, whatever the order of the ids.
    kept.clear();
    kept.extend(allowed.iter().map(|id| row.get(*id as usize).copied().unwrap_or(REMOVED)));
    row.fill(REMOVED);
    for (id, x) in allowed.iter().zip(kept.iter()) {
        if let Some(place) = row.get_mut(*id as usize) {
            *place = *x;
        }
    }
    // end of exercise
}

/// Removes these tokens.
pub fn ban(row: &mut [f32], banned: &[u32]) {
    // exercise l4.bans
    for id in banned {
        if let Some(x) = row.get_mut(*id as usize) {
            *x = REMOVED;
        }
    }
    // end of exercise
}

/// Removes every token that would end an output of `generated` tokens while it is shorter than `min_tokens`. `ends` are
/// the model's own end tokens *and* the request's stop tokens.
pub fn ban_early_ends(row: &mut [f32], ends: &[u32], generated: usize, min_tokens: usize) {
    // exercise l4.bans
    if generated < min_tokens {
        ban(row, ends);
    }
    // end of exercise
}

/// Removes the tokens that a guide does not allow.
///
/// Grammars allow nearly all tokens (inside a string) or nearly none (between two keys), so many words of a mask are
/// all ones or all zeros: one comparison for 32 tokens.
pub fn apply_mask(row: &mut [f32], mask: &TokenMask) {
    let words = mask.words();
    let covered = row.len().min(words.len() * 32);
    let (row, beyond) = row.split_at_mut(covered);
    // exercise l4.bans
    beyond.fill(REMOVED);
    mask_words(Isa::best(), row, words);
    // end of exercise
}

dispatch! {
    /// Applies the mask word by word. There must be enough words for the row.
    fn mask_words<const FMA: bool>(row: &mut [f32], words: &[u32]) {
        let (whole, rest) = row.as_chunks_mut::<32>();
        let last = words.get(whole.len());
        // Exactly 32 tokens, so that the inner loop becomes four or eight vectors.
        for (word, tokens) in words.iter().zip(whole) {
            mask_word(*word, tokens);
        }
        if let Some(word) = last {
            mask_word(*word, rest);
        }
    }
}

/// Bit `i` of a word, for token `i`: the lowest bit is the first token.
const BITS: [u32; 32] = {
    let mut bits = [1; 32];
    let mut i = 1;
    while i < 32 {
        bits[i] = bits[i - 1] << 1;
        i += 1;
    }
    bits
};

/// Applies one word to its tokens.
#[inline(always)]
fn mask_word(word: u32, tokens: &mut [f32]) {
    // exercise l4.bans
    match word {
        u32::MAX => {}
        0 => tokens.fill(REMOVED),
        _ => {
            for (x, bit) in tokens.iter_mut().zip(&BITS) {
                // A select instead of a branch: with random bits, half the branches would be mispredicted.
                *x = if word & bit != 0 { *x } else { REMOVED };
            }
        }
    }
    // end of exercise
}

/// Whether any token is left.
pub fn any_left(row: &[f32]) -> bool {
    row.iter().any(|x| logit(*x) > REMOVED)
}
