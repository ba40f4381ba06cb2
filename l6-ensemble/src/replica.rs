//! A replica: one engine, as a lane sees it.

use std::fmt;

use l4_sampler::guide::{CacheStats, CompiledGuide, GuideSpec};
use l5_scheduler::engine::ModelFacts;
use l5_scheduler::{
    EngineError, EngineHandle, EngineRequest, Load, RequestId, ResponseStream, SchedulerConfig,
    SubmitError,
};

/// Number of a replica in its lane, from 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReplicaId(pub u32);

impl fmt::Display for ReplicaId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// An engine that serves the model of a lane. No method waits for a step, but for the four that say so.
///
/// [`EngineHandle`] is one: an engine on a thread of this process. A server has another one, for other machines.
pub trait Replica: Send + Sync + 'static {
    /// Submits requests, `samples` of each, all or none. Responses come prompt by prompt.
    ///
    /// # Errors
    /// As [`EngineHandle::submit`].
    fn submit(
        &self,
        requests: Vec<EngineRequest>,
        samples: u32,
    ) -> Result<Vec<ResponseStream>, SubmitError>;

    /// Returns whether the queue has room for `requests` more at this moment.
    ///
    /// # Errors
    /// [`SubmitError::Full`], [`SubmitError::Draining`], [`SubmitError::Stopped`].
    fn room_for(&self, requests: usize) -> Result<(), SubmitError>;

    /// Checks a request whose guide is compiled, without submitting it. What is not checked here is when it is
    /// submitted.
    ///
    /// # Errors
    /// [`SubmitError`] of an invalid request.
    fn check(&self, request: &EngineRequest) -> Result<(), SubmitError> {
        let _ = request;
        Ok(())
    }

    /// Whether its steps run on this machine, in turns with those of other replicas.
    fn shares_machine(&self) -> bool {
        true
    }

    /// Load of the engine.
    fn load(&self) -> Load;

    /// Limits of its scheduler.
    fn config(&self) -> &SchedulerConfig;

    /// Facts about its model.
    fn model(&self) -> &ModelFacts;

    /// Compiles a guide on the calling thread, which takes up to about a second. It serves every replica of the model.
    ///
    /// # Errors
    /// [`SubmitError::Guide`], [`SubmitError::NoTokenizer`].
    fn compile_guide(&self, spec: &GuideSpec, scope: &str) -> Result<CompiledGuide, SubmitError>;

    /// Returns a guide that was compiled before and is still cached.
    fn compiled_guide(&self, spec: &GuideSpec, scope: &str) -> Option<CompiledGuide>;

    /// Counts of the guide cache.
    fn guide_stats(&self) -> CacheStats;

    /// Whether its requests are relayed, so that one may end with a [`RelayFailure`](l5_scheduler::RelayFailure).
    fn relays(&self) -> bool {
        false
    }

    /// Aborts a request, unless it has ended.
    ///
    /// # Errors
    /// [`EngineError`], if the engine has ended.
    fn abort(&self, request: RequestId) -> Result<(), EngineError>;

    /// Number of times that the engine has polled its inbox. It grows while the engine lives and is used.
    fn inbox_polls(&self) -> u64;

    /// Why the replica serves no requests: its engine has ended, or the server that it relays to cannot be reached, which
    /// may pass. `None` while it serves.
    fn ended(&self) -> Option<EngineError>;

    /// Waits until the engine has ended.
    fn wait_until_ended(&self) -> EngineError;

    /// Drains the engine: accepts no new requests, and waits until all others have ended.
    ///
    /// # Errors
    /// [`EngineError::Failed`], if the engine failed before.
    fn drain(&self) -> Result<(), EngineError>;

    /// Shuts the engine down, and waits until it has ended. Its requests end as aborted.
    ///
    /// # Errors
    /// [`EngineError::Failed`], if the engine failed before.
    fn shutdown(&self) -> Result<(), EngineError>;
}

impl Replica for EngineHandle {
    fn submit(
        &self,
        requests: Vec<EngineRequest>,
        samples: u32,
    ) -> Result<Vec<ResponseStream>, SubmitError> {
        self.submit_samples(requests, samples)
    }

    fn room_for(&self, requests: usize) -> Result<(), SubmitError> {
        Self::room_for(self, requests)
    }

    fn check(&self, request: &EngineRequest) -> Result<(), SubmitError> {
        Self::check(self, request)
    }

    fn load(&self) -> Load {
        Self::load(self)
    }

    fn config(&self) -> &SchedulerConfig {
        Self::config(self)
    }

    fn model(&self) -> &ModelFacts {
        Self::model(self)
    }

    fn compile_guide(&self, spec: &GuideSpec, scope: &str) -> Result<CompiledGuide, SubmitError> {
        Self::compile_guide(self, spec, scope)
    }

    fn compiled_guide(&self, spec: &GuideSpec, scope: &str) -> Option<CompiledGuide> {
        Self::compiled_guide(self, spec, scope)
    }

    fn guide_stats(&self) -> CacheStats {
        Self::guide_stats(self)
    }

    fn abort(&self, request: RequestId) -> Result<(), EngineError> {
        Self::abort(self, request)
    }

    fn inbox_polls(&self) -> u64 {
        Self::inbox_polls(self)
    }

    fn ended(&self) -> Option<EngineError> {
        Self::ended(self)
    }

    fn wait_until_ended(&self) -> EngineError {
        Self::wait_until_ended(self)
    }

    fn drain(&self) -> Result<(), EngineError> {
        Self::drain(self)
    }

    fn shutdown(&self) -> Result<(), EngineError> {
        Self::shutdown(self)
    }
}
