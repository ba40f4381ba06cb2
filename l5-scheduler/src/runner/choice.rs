//! A request in the runner: the state of its choice, and the receiver of its output.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use l2_model::tokenizer::Tokenizer;
use l4_sampler::draft::DraftSampling;
use l4_sampler::output::{CallFormat, ChoiceEnd, ChoiceState, NewTokens};
use l4_sampler::{Sampled, TokenLogprobs};

use super::draft::DraftState;
use super::job::{ChoiceJob, OutputEnd, OutputSink, TokenDelta};
use crate::{AdapterFailure, FinishReason};

/// A request's choice, with the receiver of its output.
pub(super) struct RunningChoice {
    state: ChoiceState,
    sink: Box<dyn OutputSink>,
    pub(super) called: CallSource,
    pub(super) drafts: DraftState,
    /// Index of its adapter, -1 without one. `None`: it has one that cannot be run.
    pub(super) adapter: Option<i32>,
    /// Name of its adapter.
    adapter_name: Option<String>,
}

/// What the tool is found by that the output calls.
pub(super) struct CallSource {
    pub format: Option<Arc<CallFormat>>,
    /// Whether special tokens are part of the text.
    pub special: bool,
    /// Whether the text continues the prompt's.
    pub continues: bool,
}

impl RunningChoice {
    /// Creates a choice without tokens. An invalid one fails with its first token. `draws`: its drafts are drawn, if it
    /// samples. `adapter` is the index of its adapter.
    pub(super) fn new(
        job: ChoiceJob,
        tokenizer: Option<&Tokenizer>,
        vocab: usize,
        max_model_len: usize,
        draws: bool,
        adapter: Option<i32>,
    ) -> Self {
        let called = CallSource {
            format: job.calls.clone(),
            special: job.stop.special_tokens,
            continues: job.continues,
        };
        let sampling = draws.then(|| DraftSampling::new(&job.params, job.seed, job.sample));
        let drafts = DraftState::new(job.max_drafts, job.tenant.clone(), sampling.flatten());
        let adapter_name = job.adapter.as_ref().map(|own| own.name.clone());
        let (prompt, spec, sink) = job.split();
        let state = ChoiceState::new(spec, &prompt, tokenizer, vocab, max_model_len);
        Self { state, sink, called, drafts, adapter, adapter_name }
    }

    /// Reports what a step has added, with the log probabilities of the rows that were read. `list` is memory for them.
    pub(super) fn deliver(
        &mut self,
        new: &NewTokens,
        sampled: &mut [Sampled],
        list: &mut Vec<TokenLogprobs>,
    ) {
        let NewTokens { tokens, text, rows } = new;
        let sampled = &mut sampled[..rows.len()];
        list.extend(sampled.iter_mut().filter_map(|row| row.logprobs.take()));
        // A token that was forced, or none at all, has not been rated.
        let logprobs = if tokens.len() == list.len() { list.as_slice() } else { &[] };
        if !tokens.is_empty() || !text.is_empty() {
            self.sink.push(&TokenDelta { tokens, text, logprobs });
        }
        // Their buffers are used again.
        for (row, logprobs) in sampled.iter_mut().zip(list.drain(..)) {
            row.logprobs = Some(logprobs);
        }
    }

    /// Reports the text that was held back, and then the end of the request.
    pub(super) fn close(self, finish: FinishReason) {
        let Self { state, mut sink, drafts, adapter_name, .. } = self;
        let mut rest = String::new();
        let ChoiceEnd { stop, error, is_nan } = state.close(finish, &mut rest);
        let adapter_failure = adapter_name.filter(|_| is_nan).map(AdapterFailure::not_finite);
        let error = adapter_failure.as_ref().map(ToString::to_string).or(error);
        if !rest.is_empty() {
            sink.push(&TokenDelta { text: &rest, ..TokenDelta::default() });
        }
        let drafts = drafts.counts;
        sink.end(&OutputEnd { stop, error, adapter_failure, drafts, ..OutputEnd::of(finish) });
    }
}

impl Deref for RunningChoice {
    type Target = ChoiceState;

    fn deref(&self) -> &ChoiceState {
        &self.state
    }
}

impl DerefMut for RunningChoice {
    fn deref_mut(&mut self) -> &mut ChoiceState {
        &mut self.state
    }
}

/// Checks a job against a model of `vocab` tokens.
pub(super) fn check(job: &ChoiceJob, vocab: usize) -> Result<(), l4_sampler::Error> {
    job.spec().validate(&job.prompt, vocab)
}
