//! All stages of a row, in order.

use super::bans::{add_bias, allow_only, any_left, apply_mask, ban, ban_early_ends};
use super::penalties::penalize;
use super::{min_p, softmax, temperature, top_k, top_p, typical_p};
use crate::error::RowError;
use crate::sampler::Row;

/// Applies, in order: bias, allowed and banned tokens, the ban of end tokens before `min_tokens`, and the guide's mask.
/// They come first, so that no filter keeps a token that cannot be sampled.
///
/// # Errors
/// [`RowError`] if no token is left.
pub fn ban_reference(row: &mut [f32], of: &Row<'_>) -> Result<(), RowError> {
    if row.iter().all(|x| x.is_nan()) {
        return Err(RowError::AllNan);
    }
    let params = of.params;
    add_bias(row, &params.logit_bias);
    if let Some(allowed) = &params.allowed_tokens {
        allow_only(row, allowed, &mut Vec::new());
    }
    ban(row, &params.banned_tokens);
    ban_early_ends(row, of.ends, of.history.generated(), params.min_tokens);
    if let Some(mask) = of.mask {
        apply_mask(row, mask);
    }
    if any_left(row) { Ok(()) } else { Err(RowError::NothingLeft) }
}

/// Probabilities that a row's token is sampled from: the reference of [`Sampler`](crate::Sampler).
///
/// Temperature comes before the filters, so that top-p sees the probabilities that are sampled from. Each filter works
/// on the normalised rest of the one before.
///
/// # Errors
/// [`RowError`] if no token can be sampled.
pub fn process_reference(logits: &[f32], of: &Row<'_>) -> Result<Vec<f32>, RowError> {
    let params = of.params;
    let mut row = logits.to_vec();
    ban_reference(&mut row, of)?;
    let (presence, frequency) = (params.presence_penalty, params.frequency_penalty);
    penalize(&mut row, of.history, params.repetition_penalty, presence, frequency);
    // A penalty can push logits beyond f32's range.
    if !any_left(&row) {
        return Err(RowError::NothingLeft);
    }
    // exercise l4.filters
    temperature(&mut row, params.temperature);
    top_k(&mut row, params.top_k);
    top_p(&mut row, params.top_p);
    min_p(&mut row, params.min_p);
    typical_p(&mut row, params.typical_p);
    Ok(softmax(&row).into_iter().map(|p| p as f32).collect())
    // end of exercise
}
