//! The handle through which all threads use an engine.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use l4_sampler::guide::{CacheStats, CompiledGuide, GuideSpec};

use super::inbox::{Inbox, Submission};
use super::load::{Gauge, Load};
use super::outbox::{Outbox, ResponseStream, Sink};
use super::valid::{ModelFacts, RequestValidator, ValidRequest};
use super::{EngineError, EngineRequest, SubmitError};
use crate::adapters::AdapterLimits;
use crate::tiers::Tiers;
use crate::{FinishReason, Rejection, RequestId, SchedulerConfig, StepObserver};

/// State that the engine's thread and all handles share.
pub(super) struct Shared {
    pub inbox: Arc<Inbox>,
    pub gauge: Arc<Gauge>,
    pub validator: RequestValidator,
    /// The tiers behind the pool.
    pub tiers: Option<Tiers>,
    ids: AtomicU64,
}

impl Shared {
    pub(super) fn new(config: SchedulerConfig, facts: ModelFacts, capacity: usize) -> Self {
        Self {
            inbox: Arc::new(Inbox::new(capacity, config.max_num_seqs)),
            gauge: Arc::new(Gauge::new()),
            validator: RequestValidator::new(config, facts),
            tiers: None,
            ids: AtomicU64::new(0),
        }
    }

    /// State of an engine that takes adapters within these limits.
    pub(super) fn with_adapters(mut self, adapters: Option<AdapterLimits>) -> Self {
        self.validator = self.validator.with_adapters(adapters);
        self
    }

    /// State of an engine with these tiers.
    pub(super) fn with_tiers(self, tiers: Option<Tiers>) -> Self {
        Self { tiers, ..self }
    }

    /// State of an engine that relays its requests.
    pub(super) fn relaying(mut self) -> Self {
        self.validator.relays = true;
        self
    }
}

/// A handle to an engine on its thread. Clones are handles to the same engine.
#[derive(Clone)]
pub struct EngineHandle {
    pub(super) shared: Arc<Shared>,
}

impl EngineHandle {
    /// Submits a request. An invalid request is refused here, and its guide is compiled here, on the calling thread.
    ///
    /// # Errors
    /// [`SubmitError`], which says what to do.
    pub fn submit(&self, request: EngineRequest) -> Result<ResponseStream, SubmitError> {
        let mut answers = self.submit_all(vec![request])?;
        answers.pop().ok_or(Rejection::EmptyPrompt.into())
    }

    /// Submits a request for `n` choices, numbers 0 to n - 1 of its seed. They are submitted together, so that the full
    /// blocks of the prompt are computed once.
    ///
    /// # Errors
    /// As [`EngineHandle::submit`]; then none of them was accepted.
    pub fn submit_n(
        &self,
        request: EngineRequest,
        n: u32,
    ) -> Result<Vec<ResponseStream>, SubmitError> {
        self.submit_samples(vec![request], n)
    }

    /// Submits several requests for `n` choices each, all or none. Streams are in the order of the requests, and of the
    /// choices of each. The choices of a request share its prompt, parameters and guide.
    ///
    /// # Errors
    /// As [`EngineHandle::submit`]; then none of them was accepted.
    pub fn submit_samples(
        &self,
        requests: Vec<EngineRequest>,
        n: u32,
    ) -> Result<Vec<ResponseStream>, SubmitError> {
        self.hand_in(requests, n, false)
    }

    /// Submits several requests, all or none: they can be in the same step.
    ///
    /// # Errors
    /// As [`EngineHandle::submit`]; then none of them was accepted.
    pub fn submit_all(
        &self,
        requests: Vec<EngineRequest>,
    ) -> Result<Vec<ResponseStream>, SubmitError> {
        self.hand_in(requests, 1, false)
    }

    /// As [`EngineHandle::submit_all`], but waits while the queue is full.
    ///
    /// # Errors
    /// As [`EngineHandle::submit`], but never [`SubmitError::Full`].
    pub fn submit_waiting(
        &self,
        requests: Vec<EngineRequest>,
    ) -> Result<Vec<ResponseStream>, SubmitError> {
        self.hand_in(requests, 1, true)
    }

    fn hand_in(
        &self,
        requests: Vec<EngineRequest>,
        samples: u32,
        waits: bool,
    ) -> Result<Vec<ResponseStream>, SubmitError> {
        let wanted = requests.len().saturating_mul(samples as usize);
        if !waits {
            // Before anything is compiled or copied for a request that would then be refused.
            self.room_for(wanted)?;
        }
        let checked: Result<Vec<_>, _> =
            requests.into_iter().map(|r| self.shared.validator.validate(r)).collect();
        let mut answers = Vec::with_capacity(wanted);
        let mut submissions = Vec::with_capacity(wanted);
        for request in checked?.into_iter().map(Arc::new) {
            for choice in 0..samples {
                let (answer, submission) = self.prepare(&request, choice);
                answers.push(answer);
                submissions.extend(submission);
            }
        }
        match self.shared.inbox.submit(submissions.into_iter(), waits) {
            Ok(()) => Ok(answers),
            Err(why) => {
                answers.iter().for_each(ResponseStream::refused);
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

    /// Validates a request: whether it would be accepted if there is room.
    ///
    /// # Errors
    /// As [`EngineHandle::submit`].
    pub fn check(&self, request: &EngineRequest) -> Result<(), SubmitError> {
        self.shared.validator.validate(request.clone()).map(drop)
    }

    /// Compiles a guide for this engine's model on the calling thread, which may take about a second: callers with many
    /// clients bound how many do so at once. Guides are kept for the next request of the same `scope`, a tenant's salt.
    ///
    /// # Errors
    /// [`SubmitError::Guide`], [`SubmitError::NoTokenizer`].
    pub fn compile_guide(
        &self,
        spec: &GuideSpec,
        scope: &str,
    ) -> Result<CompiledGuide, SubmitError> {
        self.shared.validator.compile_guide(spec, scope)
    }

    /// A guide that was compiled before and is still kept.
    pub fn compiled_guide(&self, spec: &GuideSpec, scope: &str) -> Option<CompiledGuide> {
        self.shared.validator.compiled_guide(spec, scope)
    }

    /// Counts of the guide cache; zeros before the first guide.
    pub fn guide_stats(&self) -> CacheStats {
        self.shared.validator.guide_stats()
    }

    /// Creates choice `choice` of a request: its outbox, with room for the whole response, and the submission for the
    /// engine. A choice of no tokens is not submitted.
    fn prepare(
        &self,
        valid: &Arc<ValidRequest>,
        choice: u32,
    ) -> (ResponseStream, Option<Submission>) {
        let shared = &self.shared;
        let id = RequestId(shared.ids.fetch_add(1, Ordering::Relaxed));
        let outbox = Outbox::new(shared.gauge.clone(), id, valid);
        let answer = ResponseStream::new(id, outbox.clone(), shared.inbox.clone());
        if valid.max_tokens() == 0 {
            outbox.end_with(FinishReason::Length, None);
            return (answer, None);
        }
        let job = valid.job(choice, Box::new(Sink(outbox.clone())));
        let (request, at) = (Arc::clone(valid), valid.arrived(Instant::now()));
        (answer, Some(Submission { id, request, job, outbox, at }))
    }

    /// Aborts a request: it ends with [`FinishReason::Aborted`], unless it has ended. Dropping the [`ResponseStream`] does the
    /// same.
    ///
    /// # Errors
    /// [`EngineError`].
    pub fn abort(&self, id: RequestId) -> Result<(), EngineError> {
        self.shared.inbox.tell(|mail| mail.aborts.push(id))
    }

    /// Fails the requests that wait to be relayed, as [`RelayFailure::Unserved`](crate::RelayFailure): another replica
    /// may serve them. Those that are relayed go on. An engine that computes has no such requests.
    ///
    /// # Errors
    /// [`EngineError`].
    pub fn fail_waiting(&self, error: impl ToString) -> Result<(), EngineError> {
        self.shared.inbox.tell(|mail| mail.unserved = Some(error.to_string()))
    }

    /// Drains the engine: accepts no new requests, and waits until all others have ended.
    ///
    /// # Errors
    /// [`EngineError::Failed`], if the engine failed before.
    pub fn drain(&self) -> Result<(), EngineError> {
        self.shared.inbox.drain()
    }

    /// Shuts the engine down, and waits until it has ended. Its requests end with [`FinishReason::Aborted`].
    ///
    /// # Errors
    /// [`EngineError::Failed`], if it failed before.
    pub fn shutdown(&self) -> Result<(), EngineError> {
        // An engine that has ended already needs no message.
        let _ = self.shared.inbox.tell(|mail| mail.shut_down = true);
        match self.shared.inbox.wait_until_ended() {
            EngineError::ShutDown => Ok(()),
            failed => Err(failed),
        }
    }

    /// Why the engine has ended; `None` while it runs.
    pub fn ended(&self) -> Option<EngineError> {
        self.shared.inbox.ended()
    }

    /// Waits until the engine has ended, and returns why. For a thread that watches it: an engine that fails reports it to
    /// the requests that it has, and to nothing else.
    pub fn wait_until_ended(&self) -> EngineError {
        self.shared.inbox.wait_until_ended()
    }

    /// Load of the engine, read without a lock. Its slack is that of this moment, also in the midst of a step.
    pub fn load(&self) -> Load {
        self.shared.gauge.read(self.shared.inbox.waiting())
    }

    /// Adds an observer of every step from the next one on. It runs on the engine's thread: all requests wait for it.
    ///
    /// # Errors
    /// [`EngineError`].
    pub fn observe(&self, observer: Box<dyn StepObserver>) -> Result<(), EngineError> {
        self.shared.inbox.tell(|mail| mail.observers.push(observer))
    }

    /// The scheduler's limits.
    pub fn config(&self) -> &SchedulerConfig {
        self.shared.validator.config()
    }

    /// The tiers behind the pool, for metrics.
    pub fn tiers(&self) -> Option<&Tiers> {
        self.shared.tiers.as_ref()
    }

    /// Facts about the model.
    pub fn model(&self) -> &ModelFacts {
        self.shared.validator.facts()
    }

    /// Number of times that the engine has polled its inbox: once a step, and each time that it was woken.
    pub fn inbox_polls(&self) -> u64 {
        self.shared.inbox.polls()
    }
}

impl std::fmt::Debug for EngineHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EngineHandle").field("load", &self.load()).finish_non_exhaustive()
    }
}
