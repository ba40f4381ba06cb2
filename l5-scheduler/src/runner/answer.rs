//! What is asked of the model for one request, and who is told of the answer as it comes.

use std::sync::Arc;

use l4_sampler::guide::CompiledGuide;
use l4_sampler::stop::{StopReason, StopRules};
use l4_sampler::{SamplingParams, TokenLogprobs};

use crate::{FinishReason, Request, RequestId, Time};

/// One answer to a prompt: all that a [`ModelRunner`](crate::ModelRunner) must know of a request beside its tokens.
pub struct AnswerJob {
    /// The prompt, as token ids. The scheduler is given the same: see [`AnswerJob::request`].
    pub prompt: Arc<[u32]>,
    /// How to choose tokens.
    pub params: Arc<SamplingParams>,
    /// When to end.
    pub stop: StopRules,
    /// Of all random numbers of its request.
    pub seed: u64,
    /// Which of several answers to the same prompt this is: with the seed and a token's place, it keys the random number.
    pub sample: u32,
    /// What the answer must look like. Followed from the request's first token on: a request that waits has no parser.
    pub guide: Option<CompiledGuide>,
    /// Whether its text continues the prompt's, or stands for itself as in a chat.
    pub continues: bool,
    /// Who is told.
    pub sink: Box<dyn AnswerSink>,
}

/// Receives an answer. It is called in the midst of a step, so it must not wait for anybody.
pub trait AnswerSink: Send {
    /// The answer goes on.
    fn push(&mut self, news: &News<'_>);

    /// It has ended: nothing comes after this. Called exactly once.
    fn end(&mut self, end: &AnswerEnd);
}

/// What an answer has more than before.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct News<'a> {
    /// Its new tokens: mostly one; none where only text was held back.
    pub tokens: &'a [u32],
    /// Text that has become certain. It lags behind the tokens while it could still become a stop string, or end in the
    /// middle of a character.
    pub text: &'a str,
    /// One for each of the tokens, if they were asked for.
    pub logprobs: &'a [TokenLogprobs],
}

/// How an answer ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AnswerEnd {
    /// In a word.
    pub finish: FinishReason,
    /// What stopped it, where it came to an end of its own.
    pub stop: Option<StopReason>,
    /// What went wrong, of [`FinishReason::Failed`].
    pub error: Option<String>,
}

impl AnswerJob {
    /// An answer from seed 0 that stands for itself, without a guide.
    pub fn new(
        prompt: impl Into<Arc<[u32]>>,
        params: impl Into<Arc<SamplingParams>>,
        stop: StopRules,
        sink: Box<dyn AnswerSink>,
    ) -> Self {
        let (prompt, params) = (prompt.into(), params.into());
        Self { prompt, params, stop, seed: 0, sample: 0, guide: None, continues: false, sink }
    }

    /// The same request, as the scheduler wants to know it: the two then agree on where the answer ends.
    pub fn request(&self, id: RequestId, arrival: Time) -> Request {
        let StopRules { eos, ignore_eos, token_ids, max_tokens, .. } = &self.stop;
        Request {
            id,
            prompt: self.prompt.to_vec(),
            max_tokens: *max_tokens,
            eos: if *ignore_eos { Vec::new() } else { eos.clone() },
            stop_token_ids: token_ids.clone(),
            arrival,
            ..Request::default()
        }
    }
}

impl std::fmt::Debug for AnswerJob {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AnswerJob")
            .field("prompt", &self.prompt.len())
            .field("params", &self.params)
            .field("stop", &self.stop)
            .field("seed", &self.seed)
            .field("sample", &self.sample)
            .field("guided", &self.guide.is_some())
            .finish_non_exhaustive()
    }
}
