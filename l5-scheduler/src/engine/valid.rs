//! Validation: a request is validated once, when it is submitted, into a [`ValidRequest`].

use std::sync::{Arc, OnceLock};
use std::time::Instant;

use l2_model::ModelFiles;
use l2_model::tokenizer::Tokenizer;
use l4_sampler::guide::{CacheStats, CompiledGuide, GuideError, GuideSpec, Guides};

use super::{EngineRequest, GuideSource, SubmitError, relay};
use crate::adapters::AdapterLimits;
use crate::runner::{ChoiceJob, OutputSink};
use crate::{Request, RequestId, Scheduler, SchedulerConfig, Time};

/// Facts about a model that validation needs.
#[derive(Clone, Debug, Default)]
pub struct ModelFacts {
    /// Width of a row of logits: token ids are below it.
    pub vocab: usize,
    /// Tokenizer, for text and for guides.
    pub tokenizer: Option<Tokenizer>,
    /// Tokens that end an output, unless a request has others.
    pub stop_tokens: Vec<u32>,
}

impl ModelFacts {
    /// Facts about the model of a checkpoint whose weights are not read.
    ///
    /// # Errors
    /// The tokenizer cannot be read.
    pub fn of_files(files: &ModelFiles) -> l2_model::Result<Self> {
        let (vocab, tokenizer) = (files.config().vocab, Some(files.tokenizer()?));
        Ok(Self { vocab, tokenizer, stop_tokens: Self::stop_tokens_of(files) })
    }

    /// Tokens that end an output. A token without a logit is never sampled.
    pub(super) fn stop_tokens_of(files: &ModelFiles) -> Vec<u32> {
        let known = |id: &&u32| (**id as usize) < files.config().vocab;
        files.stop_tokens().iter().filter(known).copied().collect()
    }
}

/// Validates requests for one engine: its model, its limits, and the guides that it has compiled.
pub(crate) struct RequestValidator {
    config: SchedulerConfig,
    facts: ModelFacts,
    /// Adapters that the engine takes. `None`: none.
    adapters: Option<AdapterLimits>,
    /// Guide cache, created for the first request with a guide.
    guides: OnceLock<Result<Guides, GuideError>>,
    /// Whether the engine relays its requests, which not every request allows.
    pub(super) relays: bool,
}

/// A request that can be run to its end: every parameter is in its range, every token exists, prompt and output fit the
/// engine, its guide is compiled. Only a [`RequestValidator`] makes one.
#[derive(Clone, Debug)]
pub(crate) struct ValidRequest {
    request: EngineRequest,
    guide: Option<CompiledGuide>,
}

impl RequestValidator {
    pub(crate) fn new(config: SchedulerConfig, facts: ModelFacts) -> Self {
        Self { config, facts, adapters: None, guides: OnceLock::new(), relays: false }
    }

    /// Accepts requests with adapters within these limits.
    pub(crate) fn with_adapters(self, adapters: Option<AdapterLimits>) -> Self {
        Self { adapters, ..self }
    }

    pub(crate) fn config(&self) -> &SchedulerConfig {
        &self.config
    }

    pub(crate) fn facts(&self) -> &ModelFacts {
        &self.facts
    }

    /// Validates a request, and compiles its guide on the calling thread.
    ///
    /// # Errors
    /// [`SubmitError`], naming what is invalid.
    pub(crate) fn validate(&self, mut request: EngineRequest) -> Result<ValidRequest, SubmitError> {
        let ModelFacts { vocab, tokenizer, stop_tokens } = &self.facts;
        let vocab = *vocab;
        if self.relays {
            relay::check(&request)?;
        }
        AdapterLimits::check(self.adapters.as_ref(), request.adapter.as_ref())?;
        if request.stop.eos.is_empty() {
            request.stop.eos.clone_from(stop_tokens);
        }
        request.params.validate(vocab)?;
        request.stop.validate(vocab)?;
        if let Some(&id) = request.prompt.iter().find(|id| **id as usize >= vocab) {
            return Err(SubmitError::UnknownToken { id, vocab });
        }
        if tokenizer.is_none() && !request.stop.strings.is_empty() {
            return Err(SubmitError::NoTokenizer("stop strings"));
        }
        let max_len = self.config.max_model_len;
        let room = max_len.saturating_sub(request.prompt.len());
        request.stop.max_tokens = request.stop.max_tokens.min(room.max(1));
        let max_tokens = request.stop.max_tokens;
        // A minimum beyond the maximum cannot be met.
        request.stop.min_tokens = request.stop.min_tokens.min(max_tokens);
        if request.params.min_tokens > max_tokens {
            Arc::make_mut(&mut request.params).min_tokens = max_tokens;
        }
        Scheduler::completable(&self.config, request.prompt.len(), max_tokens)?;
        let guide = match request.guide.take() {
            None => None,
            Some(GuideSource::Compiled(guide)) => Some(guide),
            Some(GuideSource::Spec(spec)) => {
                let scope = request.cache_salt.as_deref().unwrap_or_default();
                Some(self.compile_guide(&spec, scope)?)
            }
        };
        Ok(ValidRequest { request, guide })
    }

    /// Compiles a guide, or returns the one that was compiled before for the same `scope`.
    ///
    /// # Errors
    /// [`SubmitError::Guide`], [`SubmitError::NoTokenizer`].
    pub(crate) fn compile_guide(
        &self,
        spec: &GuideSpec,
        scope: &str,
    ) -> Result<CompiledGuide, SubmitError> {
        let ModelFacts { vocab, tokenizer, stop_tokens } = &self.facts;
        let Some(tokenizer) = tokenizer else { return Err(SubmitError::NoTokenizer("guides")) };
        let guides = self.guides.get_or_init(|| Guides::new(tokenizer, *vocab, stop_tokens));
        let guides = guides.as_ref().map_err(Clone::clone)?;
        Ok(guides.compile(spec, scope)?)
    }

    /// A guide that was compiled before and is still kept.
    pub(crate) fn compiled_guide(&self, spec: &GuideSpec, scope: &str) -> Option<CompiledGuide> {
        self.guides.get()?.as_ref().ok()?.compiled(spec, scope)
    }

    /// Counts of the guide cache; zeros before the first guide.
    pub(crate) fn guide_stats(&self) -> CacheStats {
        let guides = self.guides.get().and_then(|guides| guides.as_ref().ok());
        guides.map(Guides::cache_stats).unwrap_or_default()
    }
}

impl ValidRequest {
    pub(crate) fn request(&self) -> &EngineRequest {
        &self.request
    }

    /// Maximum number of output tokens. A request for none needs no engine.
    pub(crate) fn max_tokens(&self) -> usize {
        self.request.stop.max_tokens
    }

    /// Time of arrival of a request that is submitted now.
    pub(crate) fn arrived(&self, now: Instant) -> Instant {
        now.checked_sub(self.request.waited).unwrap_or(now)
    }

    /// The runner's part of choice `choice` of this request.
    pub(crate) fn job(&self, choice: u32, sink: Box<dyn OutputSink>) -> ChoiceJob {
        let EngineRequest { prompt, params, stop, seed, sample, continues, calls, .. } =
            &self.request;
        ChoiceJob {
            prompt: prompt.clone(),
            params: params.clone(),
            stop: stop.clone(),
            seed: *seed,
            sample: sample + choice,
            guide: self.guide.clone(),
            continues: *continues,
            calls: calls.clone(),
            max_drafts: self.request.max_drafts,
            tenant: self.request.cache_salt.clone(),
            adapter: self.request.adapter.clone(),
            sink,
        }
    }

    /// The scheduler's part of the request.
    pub(crate) fn scheduled(&self, job: &ChoiceJob, id: RequestId, arrival: Time) -> Request {
        let EngineRequest { priority, deadline, waited, cache_salt, job: of, .. } = &self.request;
        Request {
            priority: *priority,
            deadline: deadline.map(|within| arrival + waited.as_secs_f64() + within.as_secs_f64()),
            cache_salt: cache_salt.clone(),
            job: of.clone(),
            ..job.request(id, arrival)
        }
    }
}
