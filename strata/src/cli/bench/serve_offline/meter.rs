//! Measures every step of the engine.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use l5_scheduler::{RequestId, Scheduler, StepObserver, StepResult, StepView};

use crate::cli::bench::speculation::DraftTotals;

/// Measures steps, on the engine's thread. Clones share what is measured.
#[derive(Clone, Default)]
pub(super) struct Meter(Arc<Mutex<Measured>>);

#[derive(Default)]
struct Measured {
    tally: Tally,
    /// The running step.
    open: Measure,
    /// When the last step ended, if there was more to do: steps follow each other, and nothing between them is lost.
    ended: Option<Instant>,
    /// Time of a request's last token.
    last: HashMap<RequestId, Instant>,
}

/// The measurements.
#[derive(Default)]
pub(super) struct Tally {
    /// Step by step.
    pub steps: Vec<Measure>,
    /// Seconds between two tokens of a request.
    pub gaps: Vec<f64>,
    /// Requests that were preempted, each time.
    pub preemptions: usize,
    /// Tokens of prompts that were in the cache.
    pub cached: usize,
    /// Drafts of all steps.
    pub drafts: DraftTotals,
}

/// A step.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Measure {
    /// Duration in seconds.
    pub seconds: f64,
    /// The scheduler's part of the duration.
    pub scheduling: f64,
    /// Number of requests.
    pub rows: usize,
    /// Whether each of them had one token to compute, drafts apart, and the next to choose.
    pub decodes: bool,
    /// Number of tokens that were chosen: one for each request or, with drafts, more.
    pub tokens: usize,
    /// Tokens that its requests had, together.
    pub context: usize,
    /// Whether it had been captured and was launched as a whole.
    pub replayed: bool,
}

impl Meter {
    fn lock(&self) -> MutexGuard<'_, Measured> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The measurements so far.
    pub(super) fn take(&self) -> Tally {
        std::mem::take(&mut self.lock().tally)
    }
}

impl StepObserver for Meter {
    fn planned(&mut self, view: &StepView<'_>, _: &Scheduler) {
        let mut measured = self.lock();
        let decodes = |row: l5_scheduler::RowView<'_>| {
            row.row.fed() == 1 && row.row.computed >= row.request.prompt_len()
        };
        let rows = &view.step().rows;
        measured.tally.drafts.drafts += rows.iter().filter(|row| row.drafts > 0).count() as u64;
        measured.tally.cached += rows.iter().map(|row| row.cached).sum::<usize>();
        measured.open = Measure {
            rows: view.rows().len(),
            decodes: view.rows().all(decodes),
            context: view.step().rows.iter().map(|row| row.computed).sum(),
            ..Measure::default()
        };
    }

    fn applied(&mut self, result: &StepResult, scheduler: &Scheduler) {
        let now = Instant::now();
        let mut measured = self.lock();
        let Measured { tally, open, ended, last } = &mut *measured;
        let seconds = match ended {
            Some(before) => (now - *before).as_secs_f64(),
            None => result.phases.total().as_secs_f64(),
        };
        *ended = scheduler.has_unfinished().then_some(now);
        tally.preemptions += result.preempted.len();
        if result.scheduled > 0 {
            let scheduling = (result.phases.plan + result.phases.apply).as_secs_f64();
            let replayed = result.replayed.is_some();
            let tokens = result.new_tokens().map(|(_, tokens)| tokens.len()).sum();
            tally.steps.push(Measure { seconds, scheduling, replayed, tokens, ..*open });
            tally.drafts.draft_tokens += result.draft_tokens as u64;
            tally.drafts.accepted_tokens += result.accepted_tokens as u64;
        }
        for (id, tokens) in result.new_tokens() {
            if let Some(before) = last.insert(id, now) {
                tally.gaps.push((now - before).as_secs_f64());
            }
            // Several tokens of one step come together.
            tally.gaps.extend(tokens.iter().skip(1).map(|_| 0.0));
        }
        for (id, _) in &result.finished {
            last.remove(id);
        }
    }
}

impl Tally {
    /// What one request gets in a second, in each step that only decodes; `width`: in those of so many requests.
    pub(super) fn decode_rates(&self, width: Option<usize>) -> Vec<f64> {
        let each = |step: &Measure| step.tokens as f64 / step.rows.max(1) as f64;
        self.decodes(width).map(|step| each(step) / step.seconds).collect()
    }

    /// Tokens that a request had, on average over the steps that only decode, of so many requests.
    pub(super) fn mean_context(&self, width: usize) -> Option<usize> {
        let (steps, context) =
            self.decodes(Some(width)).fold((0, 0), |(n, sum), s| (n + 1, sum + s.context));
        (steps > 0).then(|| context / steps / width)
    }

    fn decodes(&self, width: Option<usize>) -> impl Iterator<Item = &Measure> {
        let wide = move |step: &&Measure| width.is_none_or(|width| step.rows == width);
        self.steps.iter().filter(|step| step.decodes && step.seconds > 0.0).filter(wide)
    }
}
