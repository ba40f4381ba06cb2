//! Samples a token from each row of logits, by the sampling parameters of its request.

use l4_sampler::draft::Drafted;
use l4_sampler::guide::{GuideError, MaskPending};
use l4_sampler::output::NewTokens;
use l4_sampler::{Logits, Row, Sampled};

use super::choice::RunningChoice;
use super::{ModelRunner, missing};
use crate::{BySeat, ExecuteError, RequestId, StepOutput, StepRow, StepView};

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
            choice.open(prompt, row.drafts, tokenizer.as_ref());
            if choice.is_guided() {
                let ahead = ahead.get_or_insert_default();
                masks.extend(choice.start_mask(row.drafts, ahead).map(|pending| (id, pending)));
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

    /// Samples a token from each row of logits, `logits` rows in all: of the rows that sample, in the order of the step,
    /// and of their drafts.
    pub(super) fn sample(
        &mut self,
        step: &StepView<'_>,
        logits: usize,
    ) -> Result<(), ExecuteError> {
        let Self { ws, sampler, sampled, choices, .. } = self;
        let mut rows = emptied(std::mem::take(&mut self.rows));
        let mut drafted = emptied(std::mem::take(&mut self.drafted));
        gather(step, choices, &mut rows)?;
        if self.speculation.as_ref().is_some_and(|speculation| speculation.draws) {
            gather_drafted(step, choices, &mut drafted);
        }
        let (logits, sampled) = (ws.logits(logits)?, &mut sampled[..rows.len()]);
        let chosen = sampler.sample_drafted(Logits::Shared(logits), &rows, &drafted, sampled);
        self.rows = emptied(rows);
        self.drafted = emptied(drafted);
        Ok(chosen?)
    }

    /// Passes the sampled tokens to their choices, and new tokens and text to the receiver of each choice.
    pub(super) fn deal(
        &mut self,
        step: &StepView<'_>,
        out: &mut StepOutput,
    ) -> Result<(), ExecuteError> {
        let Self { choices, sampled, new, rated, read, .. } = self;
        read.clear();
        let mut sampled = sampled.as_mut_slice();
        // exercise l5.sample
        let due = step.rows().enumerate().filter(|(_, row)| row.row.samples);
        for (number, row) in due {
            let (seat, id) = (row.row.seat, row.row.id);
            let Some(choice) = choices.seated(seat, id) else { return Err(missing(id)) };
            let own;
            (own, sampled) = sampled.split_at_mut(row.row.logit_rows());
            new.clear();
            let finish = choice.choose(own, row.drafts, new);
            out.push(number, &new.tokens, finish);
            choice.deliver(new, own, rated);
            read.add(row.row, new);
        }
        Ok(())
        // end of exercise
    }
}

/// Error of a guide that fails because large guides together exceed `memory` bytes.
fn too_large(memory: usize) -> GuideError {
    GuideError::TooComplex { why: format!("large guides may take {} MiB together", memory >> 20) }
}

/// Rows of logits that tokens were taken from. The memory is reused.
#[derive(Debug, Default)]
pub(super) struct ReadRows {
    /// Request, position of the token, and index of the row.
    pub rows: Vec<(RequestId, usize, usize)>,
    /// Number of rows of the requests so far.
    first: usize,
}

impl ReadRows {
    pub fn with_capacity(rows: usize) -> Self {
        Self { rows: Vec::with_capacity(rows), first: 0 }
    }

    fn clear(&mut self) {
        self.rows.clear();
        self.first = 0;
    }

    /// Adds the rows of the next request that samples.
    fn add(&mut self, row: &StepRow, new: &NewTokens) {
        let (position, first) = (row.computed + row.fed(), self.first);
        self.rows.extend(new.rows.iter().map(|after| (row.id, position + after, first + after)));
        self.first += row.logit_rows();
    }
}

/// Collects the sampler's input for each row of logits: of each row that samples, in the order of the step, and of each
/// of its drafts.
fn gather<'a>(
    step: &StepView<'_>,
    choices: &'a BySeat<RunningChoice>,
    rows: &mut Vec<Row<'a>>,
) -> Result<(), ExecuteError> {
    // exercise l5.sample
    for row in step.rows().filter(|row| row.row.samples) {
        let position = row.row.computed + row.row.fed();
        let Some(choice) = choices.get_seated(row.row.seat, row.row.id) else {
            return Err(missing(row.row.id));
        };
        for wants in choice.rows(position, row.drafts.len()) {
            rows.push(wants.ok_or_else(|| missing(row.row.id))?);
        }
    }
    Ok(())
    // end of exercise
}

/// Collects the drafts of the rows of [`gather`] that were drawn from a distribution.
fn gather_drafted<'a>(
    step: &StepView<'_>,
    choices: &'a BySeat<RunningChoice>,
    drafted: &mut Vec<Option<Drafted<'a>>>,
) {
    for row in step.rows().filter(|row| row.row.samples) {
        let choice = choices.get_seated(row.row.seat, row.row.id);
        let draft = |i| choice.and_then(|choice| choice.drafts.drafted(row.drafts, i));
        drafted.extend((0..row.row.logit_rows()).map(draft));
    }
}

/// The memory of `rows`, emptied, for rows of the same type with another lifetime.
pub(crate) fn emptied<A, B>(mut rows: Vec<A>) -> Vec<B> {
    const { assert!(size_of::<A>() == size_of::<B>() && align_of::<A>() == align_of::<B>()) };
    rows.clear();
    rows.into_iter().map_while(|_| None).collect()
}

/// Masks that are being computed, and the requests that they are for.
pub(super) type Masks = Vec<(RequestId, MaskPending)>;

/// A [`Sampled`] for each row of logits that a step can have.
pub(super) fn outcomes(rows: usize) -> Vec<Sampled> {
    vec![Sampled::default(); rows]
}
