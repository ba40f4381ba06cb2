//! What everybody outside holds of an engine.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use l2_model::tokenizer::Tokenizer;
use l4_sampler::guide::{CacheStats, CompiledGuide, GuideError, GuideSpec, Guides};

use super::inbox::{Inbox, Submission, Terms};
use super::load::{Gauge, Load};
use super::outbox::{Answer, Outbox, Sink};
use super::{EngineError, EngineRequest, GuideSource, SubmitError};
use crate::runner::AnswerJob;
use crate::{FinishReason, Rejection, RequestId, Scheduler, SchedulerConfig, StepObserver};

/// What must be known of a model to tell whether a request can be meant.
#[derive(Clone, Debug, Default)]
pub struct ModelFacts {
    /// Rows of logits: tokens below this exist.
    pub vocab: usize,
    /// From tokens to text, and for guides.
    pub tokenizer: Option<Tokenizer>,
    /// Tokens that end an answer, unless a request has others.
    pub stop_tokens: Vec<u32>,
}

/// What an engine's thread and all handles share.
pub(super) struct Shared {
    pub inbox: Arc<Inbox>,
    pub gauge: Arc<Gauge>,
    pub config: SchedulerConfig,
    facts: ModelFacts,
    /// Made for the first request that has a guide.
    guides: OnceLock<Result<Guides, GuideError>>,
    ids: AtomicU64,
}

impl Shared {
    pub(super) fn new(config: SchedulerConfig, facts: ModelFacts, capacity: usize) -> Self {
        Self {
            inbox: Arc::new(Inbox::new(capacity, config.max_num_seqs)),
            gauge: Arc::new(Gauge::default()),
            config,
            facts,
            guides: OnceLock::new(),
            ids: AtomicU64::new(0),
        }
    }
}

/// A handle to an engine on its thread. Clones are handles to the same engine.
#[derive(Clone)]
pub struct EngineHandle {
    pub(super) shared: Arc<Shared>,
}

impl EngineHandle {
    /// Ask for an answer. What is wrong with the request is told here, and not by the answer; its guide is compiled here,
    /// on the caller's time.
    ///
    /// # Errors
    /// [`SubmitError`], which says what to do.
    pub fn submit(&self, request: EngineRequest) -> Result<Answer, SubmitError> {
        let mut answers = self.submit_all(vec![request])?;
        answers.pop().ok_or(Rejection::EmptyPrompt.into())
    }

    /// Ask for `n` answers to one prompt, samples 0 to n - 1 of the request's seed. They go in together, so that what is
    /// full of the prompt's blocks is computed once.
    ///
    /// # Errors
    /// As [`EngineHandle::submit`]; then none of them was taken.
    pub fn submit_n(&self, request: EngineRequest, n: u32) -> Result<Vec<Answer>, SubmitError> {
        self.submit_samples(vec![request], n)
    }

    /// Ask for `n` answers to each of several prompts, all or none. Answers come prompt by prompt, and samples of one
    /// prompt in their order. A sample shares with its siblings whatever is long.
    ///
    /// # Errors
    /// As [`EngineHandle::submit`]; then none of them was taken.
    pub fn submit_samples(
        &self,
        requests: Vec<EngineRequest>,
        n: u32,
    ) -> Result<Vec<Answer>, SubmitError> {
        self.hand_in(requests, n, false)
    }

    /// Ask for several answers, all or none: they can be in the same step.
    ///
    /// # Errors
    /// As [`EngineHandle::submit`]; then none of them was taken.
    pub fn submit_all(&self, requests: Vec<EngineRequest>) -> Result<Vec<Answer>, SubmitError> {
        self.hand_in(requests, 1, false)
    }

    /// As [`EngineHandle::submit_all`], but waits while the queue is full.
    ///
    /// # Errors
    /// As [`EngineHandle::submit`], but never [`SubmitError::Full`].
    pub fn submit_waiting(&self, requests: Vec<EngineRequest>) -> Result<Vec<Answer>, SubmitError> {
        self.hand_in(requests, 1, true)
    }

    fn hand_in(
        &self,
        requests: Vec<EngineRequest>,
        samples: u32,
        waits: bool,
    ) -> Result<Vec<Answer>, SubmitError> {
        let wanted = requests.len().saturating_mul(samples as usize);
        if !waits {
            // Before anything is compiled or copied for a request that would then be refused.
            self.room_for(wanted)?;
        }
        let checked: Result<Vec<_>, _> = requests.into_iter().map(|r| self.vet(r)).collect();
        let mut answers = Vec::with_capacity(wanted);
        let mut submissions = Vec::with_capacity(wanted);
        for (request, guide) in checked? {
            for sample in 0..samples {
                let (answer, submission) = self.prepare(&request, sample, guide.clone());
                answers.push(answer);
                submissions.extend(submission);
            }
        }
        match self.shared.inbox.submit(submissions.into_iter(), waits) {
            Ok(()) => Ok(answers),
            Err(why) => {
                answers.iter().for_each(Answer::refused);
                Err(why)
            }
        }
    }

    /// Whether the queue has room for `n` more requests at this moment.
    ///
    /// # Errors
    /// [`SubmitError::Full`], [`SubmitError::Draining`], [`SubmitError::Stopped`].
    pub fn room_for(&self, n: usize) -> Result<(), SubmitError> {
        self.shared.inbox.room_for(n)
    }

    /// Whether a request can be meant: whether it would be taken, if there is room.
    ///
    /// # Errors
    /// As [`EngineHandle::submit`].
    pub fn check(&self, request: &EngineRequest) -> Result<(), SubmitError> {
        self.vet(request.clone()).map(drop)
    }

    /// A request that can be meant, and its guide.
    fn vet(&self, mut request: EngineRequest) -> Result<Checked, SubmitError> {
        let ModelFacts { vocab, tokenizer, stop_tokens } = &self.shared.facts;
        let vocab = *vocab;
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
        let max_len = self.shared.config.max_model_len;
        let room = max_len.saturating_sub(request.prompt.len());
        request.stop.max_tokens = request.stop.max_tokens.min(room.max(1));
        let max_tokens = request.stop.max_tokens;
        // What does not fit cannot be asked for at least, either.
        request.stop.min_tokens = request.stop.min_tokens.min(max_tokens);
        if request.params.min_tokens > max_tokens {
            Arc::make_mut(&mut request.params).min_tokens = max_tokens;
        }
        Scheduler::completable(&self.shared.config, request.prompt.len(), max_tokens)?;
        let guide = match request.guide.take() {
            None => None,
            Some(GuideSource::Compiled(guide)) => Some(guide),
            Some(GuideSource::Spec(spec)) => {
                Some(self.compile_guide(&spec, request.cache_salt.as_deref().unwrap_or_default())?)
            }
        };
        Ok((request, guide))
    }

    /// Compile a guide for this engine's model on the calling thread, for up to about a second: callers with many clients
    /// bound how many do so at once. Guides are kept for the next request of the same `scope`, a tenant's salt.
    ///
    /// # Errors
    /// [`SubmitError::Guide`], [`SubmitError::NoTokenizer`].
    pub fn compile_guide(
        &self,
        spec: &GuideSpec,
        scope: &str,
    ) -> Result<CompiledGuide, SubmitError> {
        let ModelFacts { vocab, tokenizer, stop_tokens } = &self.shared.facts;
        let Some(tokenizer) = tokenizer else { return Err(SubmitError::NoTokenizer("guides")) };
        let guides = self.shared.guides.get_or_init(|| Guides::new(tokenizer, *vocab, stop_tokens));
        let guides = guides.as_ref().map_err(Clone::clone)?;
        Ok(guides.compile(spec, scope)?)
    }

    /// A guide that was compiled before and is still kept.
    pub fn compiled_guide(&self, spec: &GuideSpec, scope: &str) -> Option<CompiledGuide> {
        self.shared.guides.get()?.as_ref().ok()?.compiled(spec, scope)
    }

    /// What became of the guides of requests so far. Of none before the first one.
    pub fn guide_stats(&self) -> CacheStats {
        let guides = self.shared.guides.get().and_then(|guides| guides.as_ref().ok());
        guides.map(Guides::cache_stats).unwrap_or_default()
    }

    /// Sample `sample` of a request: an answer with room for all of it, and what the engine needs to give it. An answer of
    /// no tokens needs no engine.
    fn prepare(
        &self,
        request: &EngineRequest,
        sample: u32,
        guide: Option<CompiledGuide>,
    ) -> (Answer, Option<Submission>) {
        let shared = &self.shared;
        let id = RequestId(shared.ids.fetch_add(1, Ordering::Relaxed));
        let (prompt, owed) = (request.prompt.len(), request.stop.max_tokens);
        let told = request.params.logprobs.is_some();
        let outbox = Outbox::new(shared.gauge.clone(), prompt, owed, told);
        let answer = Answer::new(id, outbox.clone(), shared.inbox.clone());
        if owed == 0 {
            outbox.end_with(FinishReason::Length, None);
            return (answer, None);
        }
        let job = AnswerJob {
            prompt: request.prompt.clone(),
            params: request.params.clone(),
            stop: request.stop.clone(),
            seed: request.seed,
            sample: request.sample + sample,
            guide,
            continues: request.continues,
            sink: Box::new(Sink(outbox.clone())),
        };
        let terms = Terms {
            priority: request.priority,
            deadline: request.deadline,
            adapter: request.adapter.clone(),
            cache_salt: request.cache_salt.clone(),
            job: request.job.clone(),
        };
        (answer, Some(Submission { id, job, terms, outbox, at: Instant::now() }))
    }

    /// End a request that is not wanted any more: its answer ends with [`FinishReason::Aborted`], unless it has ended.
    /// Dropping the [`Answer`] does the same.
    ///
    /// # Errors
    /// [`EngineError`].
    pub fn abort(&self, id: RequestId) -> Result<(), EngineError> {
        self.shared.inbox.tell(|mail| mail.aborts.push(id))
    }

    /// Take no new requests, and wait until those that are there have ended.
    ///
    /// # Errors
    /// [`EngineError::Failed`], if the engine failed before.
    pub fn drain(&self) -> Result<(), EngineError> {
        self.shared.inbox.drain()
    }

    /// End the engine, and wait until it has ended. Requests that are there end with [`FinishReason::Aborted`].
    ///
    /// # Errors
    /// [`EngineError::Failed`], if it failed before.
    pub fn shutdown(&self) -> Result<(), EngineError> {
        // One that has ended already needs no telling.
        let _ = self.shared.inbox.tell(|mail| mail.shut_down = true);
        match self.shared.inbox.wait_for_the_end() {
            EngineError::ShutDown => Ok(()),
            failed => Err(failed),
        }
    }

    /// Why there is no engine any more; `None` while there is one.
    pub fn ended(&self) -> Option<EngineError> {
        self.shared.inbox.ended()
    }

    /// Wait until there is no engine any more, and say why. For a thread that watches over it: an engine that fails by
    /// itself tells those who wait for answers, and nobody else.
    pub fn wait_for_the_end(&self) -> EngineError {
        self.shared.inbox.wait_for_the_end()
    }

    /// How busy it is. Never waits for a step.
    pub fn load(&self) -> Load {
        self.shared.gauge.read(self.shared.inbox.waiting())
    }

    /// Tell somebody of every step from the next one on, on the engine's thread: whatever it does, all requests wait for.
    ///
    /// # Errors
    /// [`EngineError`].
    pub fn observe(&self, observer: Box<dyn StepObserver>) -> Result<(), EngineError> {
        self.shared.inbox.tell(|mail| mail.observers.push(observer))
    }

    /// The scheduler's limits.
    pub fn config(&self) -> &SchedulerConfig {
        &self.shared.config
    }

    /// What is known of the model.
    pub fn model(&self) -> &ModelFacts {
        &self.shared.facts
    }

    /// How often the engine has looked into its inbox: once a step, and whenever it was woken.
    pub fn looks(&self) -> u64 {
        self.shared.inbox.looks()
    }
}

impl std::fmt::Debug for EngineHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EngineHandle").field("load", &self.load()).finish_non_exhaustive()
    }
}

/// A request that can be meant, with its guide.
type Checked = (EngineRequest, Option<CompiledGuide>);
