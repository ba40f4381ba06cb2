//! Samples a token from each row of logits, by the sampling parameters of its request.

use l4_sampler::guide::{GuideError, MaskPending};
use l4_sampler::{Logits, Row, Sampled};

use super::choice::RunningChoice;
use super::{ModelRunner, missing};
use crate::{BySeat, ExecuteError, RequestId, StepOutput, StepView};

/// Maximum size in bytes of a small guide's lexer. The lexers of usual schemas are small.
const SMALL_GUIDE: usize = 512 << 10;

/// Maximum number of bytes of the lexers of all large guides together. A lexer grows as its guide follows the text, up
/// to tens of megabytes for a hostile grammar, and there can be as many guides as seats.
pub(super) const GUIDE_MEMORY: usize = 64 << 20;

impl ModelRunner {
    /// Prepares the rows that sample, before the model runs: opens their histories, and starts the masks of guided rows
    /// on the mask thread, which computes them during the forward pass.
    pub(super) fn prepare(&mut self, step: &StepView<'_>) -> Result<(), ExecuteError> {
        let Self { choices, ahead, masks, tokenizer, guide_memory, large_guides, .. } = self;
        for row in step.rows().filter(|row| row.row.samples) {
            let (seat, id) = (row.row.seat, row.row.id);
            let Some(choice) = choices.seated(seat, id) else { return Err(missing(id)) };
            let bytes = choice.unopened_guide_bytes();
            if bytes > SMALL_GUIDE {
                // Checked before the guide is cloned: as many requests can begin in one step as there are seats.
                if *large_guides + bytes > *guide_memory {
                    choice.drop_guide();
                    choice.fail(too_large(*guide_memory));
                } else {
                    *large_guides += bytes;
                }
            }
            let prompt = &row.request.tokens()[..row.request.prompt_len()];
            choice.open(prompt, tokenizer.as_ref());
            if choice.is_guided() {
                let ahead = ahead.get_or_insert_default();
                masks.extend(choice.start_mask(ahead).map(|pending| (id, pending)));
            }
        }
        Ok(())
    }

    /// Waits for all masks, and enforces the limit of large guides.
    pub(super) fn finish_masks(&mut self) {
        let Self { choices, masks, guide_memory, large_guides, .. } = self;
        let mut large = Vec::new();
        for (id, pending) in masks.drain(..) {
            let Some(choice) = choices.get_mut(id) else { continue };
            choice.finish_mask(pending);
            let bytes = choice.guide_bytes();
            if bytes > SMALL_GUIDE {
                large.push((bytes, id));
            }
        }
        let mut taken: usize = large.iter().map(|(bytes, _)| bytes).sum();
        *large_guides = taken;
        if taken <= *guide_memory {
            return;
        }
        // The largest guides fail first, so that a guide of a usual size never fails because of others.
        large.sort_unstable();
        while let Some((bytes, id)) = large.pop().filter(|_| taken > *guide_memory) {
            taken -= bytes;
            if let Some(choice) = choices.get_mut(id) {
                choice.fail(too_large(*guide_memory));
            }
        }
    }

    /// Samples a token from each row of logits. The rows are those that sample, in the order of the step.
    pub(super) fn sample(
        &mut self,
        step: &StepView<'_>,
        logits: usize,
    ) -> Result<(), ExecuteError> {
        let Self { ws, sampler, sampled, choices, .. } = self;
        let mut rows = emptied(std::mem::take(&mut self.rows));
        gather(step, choices, &mut rows)?;
        let (logits, sampled) = (ws.logits(logits)?, &mut sampled[..rows.len()]);
        let chosen = sampler.sample(Logits::Shared(logits), &rows, sampled);
        self.rows = emptied(rows);
        Ok(chosen?)
    }

    /// Passes each sampled token to its choice, and new tokens and text to the choice's receiver.
    pub(super) fn deal(
        &mut self,
        step: &StepView<'_>,
        out: &mut StepOutput,
    ) -> Result<(), ExecuteError> {
        let Self { choices, sampled, tokens, text, .. } = self;
        // exercise l5.sample
        let due = step.rows().enumerate().filter(|(_, row)| row.row.samples);
        for ((number, row), sampled) in due.zip(sampled.iter()) {
            let (seat, id) = (row.row.seat, row.row.id);
            let Some(choice) = choices.seated(seat, id) else { return Err(missing(id)) };
            tokens.clear();
            text.clear();
            let finish = choice.choose(sampled, tokens, text);
            out.push(number, tokens, finish);
            // A token that was forced, or none at all, has not been rated.
            let rated = sampled.logprobs.as_slice();
            let rated = if tokens.len() == rated.len() { rated } else { &[] };
            choice.push(tokens, text, rated);
        }
        Ok(())
        // end of exercise
    }
}

/// Error of a guide that fails because large guides together exceed `memory` bytes.
fn too_large(memory: usize) -> GuideError {
    GuideError::TooComplex { why: format!("large guides may take {} MiB together", memory >> 20) }
}

/// Collects the sampler's input for each row of logits: one for each row that samples, in the order of the step.
fn gather<'a>(
    step: &StepView<'_>,
    choices: &'a BySeat<RunningChoice>,
    rows: &mut Vec<Row<'a>>,
) -> Result<(), ExecuteError> {
    // exercise l5.sample
    for row in step.rows().filter(|row| row.row.samples) {
        let position = row.row.computed + row.row.len;
        let choice = choices.get_seated(row.row.seat, row.row.id);
        let wants = choice.and_then(|choice| choice.row(position));
        rows.push(wants.ok_or_else(|| missing(row.row.id))?);
    }
    Ok(())
    // end of exercise
}

/// The memory of `rows`, emptied, for rows with another lifetime.
pub(super) fn emptied<'a>(mut rows: Vec<Row<'_>>) -> Vec<Row<'a>> {
    rows.clear();
    rows.into_iter().map_while(|_| None).collect()
}

/// Masks that are being computed, and the requests that they are for.
pub(super) type Masks = Vec<(RequestId, MaskPending)>;

/// A [`Sampled`] for each row that a step can sample.
pub(super) fn outcomes(rows: usize) -> Vec<Sampled> {
    vec![Sampled::default(); rows]
}
