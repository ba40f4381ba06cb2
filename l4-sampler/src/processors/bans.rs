//! What may be said at all: bias, bans, and what a guide allows.
//!
//! They come first, in the order of this file: everything after them works on tokens that are still in the game. A ban
//! wins over any bias, also over one of +inf. Ids beyond the row are passed over (`validate` has refused them).

use super::{REMOVED, logit};
use crate::TokenMask;

/// Add to the logits of some tokens. A bias of -inf is a ban; a token named twice gets both.
pub fn add_bias(row: &mut [f32], bias: &[(u32, f32)]) {
    // exercise l4.bans
    for (id, bias) in bias {
        if let Some(x) = row.get_mut(*id as usize) {
            *x += bias;
            // -inf + inf is NaN: a ban and a bias of +inf, in whichever order. The ban wins.
            if x.is_nan() {
                *x = REMOVED;
            }
        }
    }
    // end of exercise
}

/// Remove all tokens but these. `kept` is scratch memory.
pub fn allow_only(row: &mut [f32], allowed: &[u32], kept: &mut Vec<f32>) {
    // exercise l4.bans
    // Put the few aside, clear the row, put them back: no search, whatever the order of the ids.
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

/// Remove these tokens.
pub fn ban(row: &mut [f32], banned: &[u32]) {
    // exercise l4.bans
    for id in banned {
        if let Some(x) = row.get_mut(*id as usize) {
            *x = REMOVED;
        }
    }
    // end of exercise
}

/// Remove every token that would end an answer of `generated` tokens, as long as it is too short. `ends` are the
/// model's own end tokens *and* those that the request wants to stop at.
pub fn hold_back_ends(row: &mut [f32], ends: &[u32], generated: usize, min_tokens: usize) {
    // exercise l4.bans
    if generated < min_tokens {
        ban(row, ends);
    }
    // end of exercise
}

/// Remove what a guide does not allow.
///
/// Grammars allow nearly all tokens (inside of a string) or nearly none (between two keys), so most words of a mask are
/// all ones or all zeros; those cost a comparison for 32 tokens.
pub fn apply_mask(row: &mut [f32], mask: &TokenMask) {
    let words = mask.words();
    let covered = row.len().min(words.len() * 32);
    let (row, beyond) = row.split_at_mut(covered);
    // exercise l4.bans
    beyond.fill(REMOVED);
    for (word, tokens) in words.iter().zip(row.chunks_mut(32)) {
        match *word {
            u32::MAX => {}
            0 => tokens.fill(REMOVED),
            word => {
                for (bit, x) in tokens.iter_mut().enumerate() {
                    // A choice and not a jump: 32 bits without a pattern are 16 jumps foreseen wrongly.
                    *x = if word >> bit & 1 == 1 { *x } else { REMOVED };
                }
            }
        }
    }
    // end of exercise
}

/// Whether any token is left.
pub fn any_left(row: &[f32]) -> bool {
    row.iter().any(|x| logit(*x) > REMOVED)
}
