//! Counting what was said: repetition, presence, frequency.
//!
//! All three move the logits of tokens that were seen; the row's other tokens are not even read. The repetition penalty
//! scales, so it depends on where the model's logits happen to have their zero (a softmax does not), and it must know the
//! sign: a logit of -2 divided by 1.3 would become *likelier*. The other two subtract.

use crate::History;

/// Make tokens less likely that were seen.
///
/// Of tokens in prompt or answer: positive logits are divided by `repetition`, the others multiplied by it (1 is off).
/// Of tokens in the answer alone: `presence` is subtracted once, `frequency` for each time the answer holds them (0 is
/// off).
pub fn penalize(
    row: &mut [f32],
    history: &History,
    repetition: f32,
    presence: f32,
    frequency: f32,
) {
    if repetition == 1.0 && presence == 0.0 && frequency == 0.0 {
        return;
    }
    // exercise l4.penalties
    for seen in history.seen() {
        let Some(x) = row.get_mut(seen.token as usize) else { continue };
        *x = if *x > 0.0 { *x / repetition } else { *x * repetition };
        if seen.in_answer > 0 {
            *x = *x - presence - frequency * seen.in_answer as f32;
        }
    }
    // end of exercise
}
