//! Repetition, presence and frequency penalties.
//!
//! All three change the logits of tokens in the request's history; the row's other tokens are not even read. The
//! repetition penalty scales, so it depends on where the model's logits have their zero (a softmax does not), and it
//! must respect the sign: a logit of -2 divided by 1.3 would become *more* likely. The other two subtract.

use crate::History;

/// Penalises tokens of the history.
///
/// Tokens in prompt or output: positive logits are divided by `repetition`, the others multiplied by it (1 is off).
/// Tokens in the output only: `presence` is subtracted once, `frequency` for each time that the token is in the output
/// (0 is off).
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
        if seen.in_output > 0 {
            *x = *x - presence - frequency * seen.in_output as f32;
        }
    }
    // end of exercise
}
