//! The runner's part of a request, and the receiver of its output.

use std::sync::Arc;

use l4_sampler::guide::CompiledGuide;
use l4_sampler::output::{CallFormat, ChoiceSpec};
use l4_sampler::stop::{StopReason, StopRules};
use l4_sampler::{SamplingParams, TokenLogprobs};

use super::draft::DraftCounts;
use crate::{AdapterFailure, FinishReason, Request, RequestAdapter, RequestId, Time};

/// One choice to generate: all that a [`ModelRunner`](crate::ModelRunner) needs of a request beside its tokens.
pub struct ChoiceJob {
    /// Token ids of the prompt. The scheduler gets the same: see [`ChoiceJob::request`].
    pub prompt: Arc<[u32]>,
    /// Sampling parameters.
    pub params: Arc<SamplingParams>,
    /// Stop conditions.
    pub stop: StopRules,
    /// Seed of all random numbers of the request.
    pub seed: u64,
    /// Number of this choice among those of the request: with the seed and a token's position, it keys the random
    /// number.
    pub sample: u32,
    /// Grammar that the output follows. Its parser starts with the first token: a waiting request has none.
    pub guide: Option<CompiledGuide>,
    /// Whether the output text continues the prompt's text; if not, it is decoded as a text of its own, as in a chat.
    pub continues: bool,
    /// How the output calls tools, for the [`Note`](crate::Note) on a step of an agent's job. `None`: as the default of
    /// [`CallFormat`] has it.
    pub calls: Option<Arc<CallFormat>>,
    /// Maximum number of drafts of the request in a step. `None`: that of the engine. 0: no speculation.
    pub max_drafts: Option<usize>,
    /// Tenant: drafts come from outputs of the same tenant only.
    pub tenant: Option<String>,
    /// LoRA adapter. [`ChoiceJob::request`] gives the scheduler its name and digest.
    pub adapter: Option<RequestAdapter>,
    /// Receiver of the output.
    pub sink: Box<dyn OutputSink>,
}

/// Receives the output of one choice. It is called during a step, so it must not block.
pub trait OutputSink: Send {
    /// The choice has new tokens or text.
    fn push(&mut self, delta: &TokenDelta<'_>);

    /// The choice has ended. Called exactly once, last.
    fn end(&mut self, end: &OutputEnd);
}

/// What a step adds to a choice.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct TokenDelta<'a> {
    /// New tokens: mostly one; none if only text became certain.
    pub tokens: &'a [u32],
    /// Text that has become certain. It lags behind the tokens while it could still become a stop string, or end in the
    /// middle of a character.
    pub text: &'a str,
    /// Log probabilities, one entry for each token, if requested.
    pub logprobs: &'a [TokenLogprobs],
}

/// How a choice ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutputEnd {
    /// Finish reason.
    pub finish: FinishReason,
    /// Stop reason, if the output itself ended the choice.
    pub stop: Option<StopReason>,
    /// Error of [`FinishReason::Failed`].
    pub error: Option<String>,
    /// Failure of the relay behind that error. `None`: the choice failed here.
    pub relay_failure: Option<RelayFailure>,
    /// Failure of the adapter behind that error. `None`: it has another cause.
    pub adapter_failure: Option<AdapterFailure>,
    /// Drafts that were verified for it.
    pub drafts: DraftCounts,
}

/// How the relay of a request failed, and so what may become of the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RelayFailure {
    /// Nothing of the response has arrived, and the failure may pass: any replica may be given the request, the same
    /// one included.
    Transient,
    /// Nothing of the response has arrived, and the same server would not do better: another replica may be given the
    /// request.
    Unserved,
    /// The server refused the request, or a part of the response has arrived.
    Final,
}

impl OutputEnd {
    /// An end for this reason, about which nothing else is known.
    pub fn of(finish: FinishReason) -> Self {
        let drafts = DraftCounts::default();
        let (relay_failure, adapter_failure) = (None, None);
        Self { finish, stop: None, error: None, relay_failure, adapter_failure, drafts }
    }
}

impl ChoiceJob {
    /// Creates a choice with seed 0 and without a guide, whose text is decoded as a text of its own.
    pub fn new(
        prompt: impl Into<Arc<[u32]>>,
        params: impl Into<Arc<SamplingParams>>,
        stop: StopRules,
        sink: Box<dyn OutputSink>,
    ) -> Self {
        let (prompt, params) = (prompt.into(), params.into());
        Self {
            prompt,
            params,
            stop,
            seed: 0,
            sample: 0,
            guide: None,
            continues: false,
            calls: None,
            max_drafts: None,
            tenant: None,
            adapter: None,
            sink,
        }
    }

    /// The parameters of its choice.
    pub(super) fn spec(&self) -> ChoiceSpec {
        let Self { params, stop, seed, sample, guide, continues, .. } = self;
        let (params, stop, guide) = (params.clone(), stop.clone(), guide.clone());
        ChoiceSpec { params, stop, seed: *seed, sample: *sample, guide, continues: *continues }
    }

    /// Splits the job into its prompt, the parameters of its choice, and the receiver of the output.
    pub(super) fn split(self) -> (Arc<[u32]>, ChoiceSpec, Box<dyn OutputSink>) {
        let Self { prompt, params, stop, seed, sample, guide, continues, sink, .. } = self;
        (prompt, ChoiceSpec { params, stop, seed, sample, guide, continues }, sink)
    }

    /// The same request for the scheduler: the two agree on where the output ends.
    pub fn request(&self, id: RequestId, arrival: Time) -> Request {
        let StopRules { eos, ignore_eos, token_ids, max_tokens, .. } = &self.stop;
        Request {
            id,
            prompt: self.prompt.to_vec(),
            max_tokens: *max_tokens,
            eos: if *ignore_eos { Vec::new() } else { eos.clone() },
            stop_token_ids: token_ids.clone(),
            arrival,
            adapter: self.adapter.as_ref().map(RequestAdapter::scheduled),
            ..Request::default()
        }
    }
}

impl std::fmt::Debug for ChoiceJob {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ChoiceJob")
            .field("prompt", &self.prompt.len())
            .field("params", &self.params)
            .field("stop", &self.stop)
            .field("seed", &self.seed)
            .field("sample", &self.sample)
            .field("guided", &self.guide.is_some())
            .finish_non_exhaustive()
    }
}
