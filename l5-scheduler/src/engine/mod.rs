//! An engine: runs a scheduler and an executor on a dedicated thread.
//!
//! [`EngineCore`] is the body of a loop. This module is the loop, and what many threads need to use it at once:
//!
//! ```text
//! EngineHandle --submit, abort, drain--> inbox --once a step--> EngineCore --each row's tokens--> outbox --> ResponseStream
//! (many)                                 (one)                  (one thread)                      (one a request)
//! ```
//!
//! The engine never waits for a client. It polls its inbox between two steps and sleeps when there is nothing to do; an
//! outbox joins unread output, so it never holds more than one response; dropping a [`ResponseStream`] aborts its
//! request. Every request ends exactly once. A step that fails ends the requests in it; if the next one fails too, or a
//! step panics, the engine ends, and all its requests fail with the reason.
//!
//! An engine may also relay its requests to another server instead of computing them: see [`Relay`].

mod build;
mod drafter;
mod handle;
mod hub;
mod inbox;
mod load;
mod options;
mod outbox;
mod relay;
mod request;
mod serve;
mod startup;
mod valid;

use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;

use l1_tensor::RuntimeOptions;

pub use build::{EngineModel, StartError};
pub use handle::EngineHandle;
pub use load::{DecodeTime, Load, LoadMeter};
pub use options::EngineOptions;
pub use outbox::{OutputChunk, ResponseStream, ResponseTimes};
pub use relay::{Relay, RelayOutput, relay_config};
pub use request::{EngineError, EngineRequest, GuideSource, SubmitError};
pub use serve::FLUSH_TIMEOUT;
pub use startup::{Startup, StartupStep};
pub use valid::ModelFacts;
pub(crate) use valid::{RequestValidator, ValidRequest};

use crate::adapters::AdapterLimits;
use crate::runner::ChoiceJob;
use crate::tiers::Tiers;
use crate::{EngineCore, Executor};
use handle::Shared;

/// An engine: a model, its KV cache and its sampler on a dedicated thread. Dropping it ends the engine and aborts its
/// requests.
///
/// ```
/// use l5_scheduler::llm::{SamplingParams, StopRules};
/// use l5_scheduler::{Engine, EngineOptions, EngineRequest, FinishReason};
///
/// let tiny = concat!(env!("CARGO_MANIFEST_DIR"), "/../fixtures/tiny-llama");
/// let options = EngineOptions { max_num_seqs: 4, ..Default::default() };
/// let engine = Engine::open(tiny.as_ref(), Default::default(), &options)?;
///
/// let stop = StopRules { max_tokens: 6, ignore_eos: true, ..Default::default() };
/// let request = EngineRequest::new(vec![5, 17, 100], SamplingParams::greedy(), stop);
/// let mut stream = engine.handle().submit(request)?;
/// let rest = stream.rest(); // or chunk by chunk: `stream.recv()`
/// assert_eq!(rest.tokens.len(), 6);
/// assert_eq!(rest.end.map(|end| end.finish), Some(FinishReason::Length));
/// engine.shutdown()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Engine {
    handle: EngineHandle,
    thread: Option<JoinHandle<()>>,
    startup: Startup,
}

impl Engine {
    /// Creates an engine for a checkpoint.
    ///
    /// # Errors
    /// [`StartError`].
    pub fn open(
        path: &Path,
        runtime: RuntimeOptions,
        options: &EngineOptions,
    ) -> Result<Self, StartError> {
        Self::new(EngineModel::open(path, runtime)?, options)
    }

    /// Creates an engine for a loaded model.
    ///
    /// # Errors
    /// [`StartError`].
    pub fn new(model: EngineModel, options: &EngineOptions) -> Result<Self, StartError> {
        let facts = model.facts();
        let (core, startup) = model.core(options)?;
        let tiers = core.executor().tiers().cloned();
        let adapters = core.executor().adapter_limits();
        let mut engine = Self::start_with(core, facts, options.max_num_waiting, tiers, adapters)?;
        engine.startup = startup;
        Ok(engine)
    }

    /// Starts an engine around any executor. `max_num_waiting` requests may wait.
    ///
    /// # Errors
    /// [`StartError::Thread`].
    pub fn start<E>(
        core: EngineCore<E>,
        facts: ModelFacts,
        max_num_waiting: usize,
    ) -> Result<Self, StartError>
    where
        E: Executor<Job = ChoiceJob> + Send + 'static,
    {
        Self::start_with(core, facts, max_num_waiting, None, None)
    }

    fn start_with<E>(
        core: EngineCore<E>,
        facts: ModelFacts,
        max_num_waiting: usize,
        tiers: Option<Tiers>,
        adapters: Option<AdapterLimits>,
    ) -> Result<Self, StartError>
    where
        E: Executor<Job = ChoiceJob> + Send + 'static,
    {
        let config = core.scheduler().config().clone();
        let shared = Shared::new(config, facts, max_num_waiting);
        let shared = Arc::new(shared.with_tiers(tiers).with_adapters(adapters));
        let handle = EngineHandle { shared: shared.clone() };
        let thread = std::thread::Builder::new().name("strata-engine".into());
        let thread = thread.spawn(move || serve::run(core, &shared)).map_err(StartError::Thread)?;
        Ok(Self { handle, thread: Some(thread), startup: Startup::default() })
    }

    /// Handle for submitting requests, shared by any number of threads.
    pub fn handle(&self) -> &EngineHandle {
        &self.handle
    }

    /// Startup report.
    pub fn startup(&self) -> &Startup {
        &self.startup
    }

    /// Ends the engine and aborts its requests. What its tiers have to store is written before, for at most
    /// [`FLUSH_TIMEOUT`].
    ///
    /// # Errors
    /// [`EngineError::Failed`] if the engine failed before.
    pub fn shutdown(mut self) -> Result<(), EngineError> {
        self.end()
    }

    fn end(&mut self) -> Result<(), EngineError> {
        let ended = self.handle.shutdown();
        if let Some(thread) = self.thread.take() {
            // The thread catches its panics and has reported them.
            let _ = thread.join();
        }
        ended
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        let _ = self.end();
    }
}
