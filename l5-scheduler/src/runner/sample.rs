//! A token for everybody whose logits there are: each from its own row, under its own rules.

use l4_sampler::guide::{GuideError, MaskPending};
use l4_sampler::{Logits, Row, Sampled};

use super::answering::Answering;
use super::{ModelRunner, missing};
use crate::{ExecuteError, StepOutput, StepView};

/// Bytes up to which a guide's lexer is small: those of usual schemas are.
const SMALL_GUIDE: usize = 512 << 10;

/// Bytes that the lexers of all guides which are not small may take together. A lexer grows as its text is followed, up to
/// some tens of megabytes for grammars made to that end, and there may be as many guides as seats.
pub(super) const GUIDE_MEMORY: usize = 64 << 20;

impl ModelRunner {
    /// Before the model runs: whoever samples has a history, and who has a guide lends it to the thread of masks, which
    /// has until the logits are there.
    pub(super) fn prepare(&mut self, step: &StepView<'_>) -> Result<(), ExecuteError> {
        let Self { places, ahead, masks, tokenizer, guide_memory, large_guides, .. } = self;
        for row in step.rows().filter(|row| row.row.samples) {
            let place = row.row.place;
            let Some(answering) = at_mut(places, place) else { return Err(missing(row.row.id)) };
            let bytes = answering.unopened_guide_bytes();
            if bytes > SMALL_GUIDE {
                // Asked before there is a copy: as many requests may begin in one step as there are seats.
                if *large_guides + bytes > *guide_memory {
                    answering.drop_guide();
                    answering.fail(too_large(*guide_memory));
                } else {
                    *large_guides += bytes;
                }
            }
            let prompt = &row.request.tokens()[..row.request.prompt_len()];
            answering.open(prompt, tokenizer.as_ref());
            if answering.is_guided() {
                let ahead = ahead.get_or_insert_default();
                masks.extend(answering.start_mask(ahead).map(|pending| (place, pending)));
            }
        }
        Ok(())
    }

    /// All guides come home.
    pub(super) fn finish_masks(&mut self) {
        let Self { places, masks, guide_memory, large_guides, .. } = self;
        let mut large = Vec::new();
        for (place, pending) in masks.drain(..) {
            let Some(answering) = at_mut(places, place) else { continue };
            answering.finish_mask(pending);
            let bytes = answering.guide_bytes();
            if bytes > SMALL_GUIDE {
                large.push((bytes, place));
            }
        }
        let mut taken: usize = large.iter().map(|(bytes, _)| bytes).sum();
        *large_guides = taken;
        if taken <= *guide_memory {
            return;
        }
        // The largest give up: a guide of a usual size never pays for those of others.
        large.sort_unstable();
        while let Some((bytes, place)) = large.pop().filter(|_| taken > *guide_memory) {
            taken -= bytes;
            if let Some(answering) = at_mut(places, place) {
                answering.fail(too_large(*guide_memory));
            }
        }
    }

    /// Choose a token from each row of logits. Row after row they belong to those who sample, in the order of the step.
    pub(super) fn sample(
        &mut self,
        step: &StepView<'_>,
        logits: usize,
    ) -> Result<(), ExecuteError> {
        let Self { ws, sampler, sampled, places, .. } = self;
        let mut rows = emptied(std::mem::take(&mut self.rows));
        gather(step, places, &mut rows)?;
        let (logits, sampled) = (ws.logits(logits)?, &mut sampled[..rows.len()]);
        let chosen = sampler.sample(Logits::Shared(logits), &rows, sampled);
        self.rows = emptied(rows);
        Ok(chosen?)
    }

    /// Let every answer take what was chosen for it, and tell who waits for it.
    pub(super) fn deal(
        &mut self,
        step: &StepView<'_>,
        out: &mut StepOutput,
    ) -> Result<(), ExecuteError> {
        let Self { places, sampled, tokens, text, .. } = self;
        let due = step.rows().enumerate().filter(|(_, row)| row.row.samples);
        for ((number, row), sampled) in due.zip(sampled.iter()) {
            let place = row.row.place;
            let Some(answering) = at_mut(places, place) else { return Err(missing(row.row.id)) };
            tokens.clear();
            text.clear();
            let finish = answering.choose(sampled, tokens, text);
            out.push(number, tokens, finish);
            // A token that was forced, or none at all, has not been rated.
            let rated = sampled.logprobs.as_slice();
            let rated = if tokens.len() == rated.len() { rated } else { &[] };
            answering.tell(tokens, text, rated);
        }
        Ok(())
    }
}

/// Guides that are not small take too much together.
fn too_large(memory: usize) -> GuideError {
    GuideError::TooComplex { why: format!("large guides may take {} MiB together", memory >> 20) }
}

/// What the sampler must know of each row of logits: one for everybody who samples, in the order of the step.
fn gather<'a>(
    step: &StepView<'_>,
    places: &'a [Option<Answering>],
    rows: &mut Vec<Row<'a>>,
) -> Result<(), ExecuteError> {
    // exercise l5.sample
    for row in step.rows().filter(|row| row.row.samples) {
        let position = row.row.computed + row.row.len;
        let answering = at(places, row.row.place);
        let wants = answering.and_then(|answering| answering.row(position));
        rows.push(wants.ok_or_else(|| missing(row.row.id))?);
    }
    Ok(())
    // end of exercise
}

pub(super) fn at(places: &[Option<Answering>], place: u32) -> Option<&Answering> {
    places.get(place as usize)?.as_ref()
}

pub(super) fn at_mut(places: &mut [Option<Answering>], place: u32) -> Option<&mut Answering> {
    places.get_mut(place as usize)?.as_mut()
}

/// The same memory, for rows that live at another time.
pub(super) fn emptied<'a>(mut rows: Vec<Row<'_>>) -> Vec<Row<'a>> {
    rows.clear();
    rows.into_iter().map_while(|_| None).collect()
}

/// Answers whose masks are being computed.
pub(super) type Masks = Vec<(u32, MaskPending)>;

/// One outcome for every row that a step may sample.
pub(super) fn outcomes(rows: usize) -> Vec<Sampled> {
    vec![Sampled::default(); rows]
}
