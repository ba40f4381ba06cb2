//! Collects the output of a generator's choices, and counts its work. One thread runs the steps and reads the output,
//! so no lock is contended.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use l4_sampler::TokenLogprobs;

use super::Work;
use crate::{
    Admitted, OutputEnd, OutputSink, RequestId, Scheduler, StepObserver, StepResult, StepView,
    TokenDelta,
};

/// Maximum number of tokens for which memory is allocated at the beginning.
const MAX_RESERVED_TOKENS: usize = 4096;

/// Output of one choice so far.
#[derive(Default)]
pub(super) struct Output {
    pub tokens: Vec<u32>,
    pub text: String,
    pub logprobs: Vec<TokenLogprobs>,
    pub end: Option<OutputEnd>,
    /// Number of tokens and bytes of text that were handed on.
    pub shown: (usize, usize),
    /// Whether the caller has stopped this choice.
    pub stopped: bool,
}

impl Output {
    /// Whether the choice has its first token, or has ended without one.
    pub(super) fn has_begun(&self) -> bool {
        !self.tokens.is_empty() || self.end.is_some()
    }

    /// Takes the text that was not handed on yet, if there is a new token or new text.
    pub(super) fn news(&mut self) -> Option<&str> {
        let now = (self.tokens.len(), self.text.len());
        let before = std::mem::replace(&mut self.shown, now);
        (now != before).then(|| &self.text[before.1..])
    }
}

/// One choice's output: one clone is with the runner, one with the generator.
#[derive(Clone)]
pub(super) struct Receiver(Arc<Mutex<Output>>);

impl Receiver {
    /// Creates a receiver with room for so many tokens, so that a steady step of plain requests allocates nothing.
    pub(super) fn new(tokens: usize) -> Self {
        let tokens = tokens.min(MAX_RESERVED_TOKENS);
        Self(Arc::new(Mutex::new(Output {
            tokens: Vec::with_capacity(tokens),
            // Estimated bytes of text per token; longer text grows the buffer a few times.
            text: String::with_capacity(4 * tokens),
            ..Output::default()
        })))
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Output> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the output out.
    pub(super) fn take(&self) -> Output {
        std::mem::take(&mut self.lock())
    }
}

impl OutputSink for Receiver {
    fn push(&mut self, news: &TokenDelta<'_>) {
        let mut output = self.lock();
        output.tokens.extend_from_slice(news.tokens);
        output.text.push_str(news.text);
        output.logprobs.extend_from_slice(news.logprobs);
    }

    fn end(&mut self, end: &OutputEnd) {
        self.lock().end = Some(end.clone());
    }
}

/// Counts the tokens of each step: one clone observes the steps, one is read by the generator.
#[derive(Clone, Default)]
pub(super) struct WorkCounter(Arc<Mutex<(Work, Option<RequestId>)>>);

impl WorkCounter {
    fn lock(&self) -> MutexGuard<'_, (Work, Option<RequestId>)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts from zero, for a request whose first choice has this id.
    pub(super) fn start(&self, first: RequestId) {
        *self.lock() = (Work::default(), Some(first));
    }

    pub(super) fn work(&self) -> Work {
        self.lock().0
    }
}

impl StepObserver for WorkCounter {
    fn planned(&mut self, step: &StepView<'_>, _scheduler: &Scheduler) {
        let (work, first) = &mut *self.lock();
        for row in step.rows() {
            let of_prompt = row.request.prompt_len().saturating_sub(row.row.computed);
            let of_prompt = of_prompt.min(row.row.len);
            work.prompt_computed += of_prompt;
            work.output_computed += row.row.len - of_prompt;
            work.sampling_rows += usize::from(row.row.samples);
            if row.row.admitted == Admitted::Now && Some(row.row.id) == *first {
                work.prompt_cached = row.row.cached;
            }
        }
        work.steps += usize::from(!step.step().is_empty());
    }

    fn applied(&mut self, _result: &StepResult, _scheduler: &Scheduler) {}
}
