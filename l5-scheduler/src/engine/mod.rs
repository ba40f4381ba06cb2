//! An engine of one's own thread.
//!
//! [`EngineCore`] is a loop's body. This is the loop, and what stands around it so that many can use it at once:
//!
//! ```text
//! EngineHandle --submit, abort, drain--> inbox --once a step--> EngineCore --each row's tokens--> outbox --> Answer
//! (many)                                 (one)                  (one thread)                      (one a request)
//! ```
//!
//! Nobody waits for anybody who is slow. The engine looks into its inbox between two steps and sleeps when there is nothing
//! to do; an outbox joins what is not read yet, so it never holds more than one answer; an [`Answer`] that is dropped is a
//! request that is aborted. Every request ends exactly once. A step that fails ends those who were in it; when the next one
//! fails too, or one panics, the engine ends, and everybody is told why.

mod build;
mod handle;
mod hub;
mod inbox;
mod load;
mod options;
mod outbox;
mod request;
mod serve;
mod startup;

use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;

use l1_tensor::RuntimeOptions;

pub use build::{EngineModel, StartError};
pub use handle::{EngineHandle, ModelFacts};
pub use load::Load;
pub use options::EngineOptions;
pub use outbox::{Answer, AnswerTimes, Piece};
pub use request::{EngineError, EngineRequest, GuideSource, SubmitError};
pub use startup::{Startup, StartupStep};

use crate::runner::AnswerJob;
use crate::{EngineCore, Executor};
use handle::Shared;

/// A model, its pool and its sampler, on a thread that has nothing else to do. Dropped, it ends, and what it was doing with
/// it.
#[derive(Debug)]
pub struct Engine {
    handle: EngineHandle,
    thread: Option<JoinHandle<()>>,
    startup: Startup,
}

impl Engine {
    /// An engine for a checkpoint.
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

    /// An engine for a model that is loaded.
    ///
    /// # Errors
    /// [`StartError`].
    pub fn new(model: EngineModel, options: &EngineOptions) -> Result<Self, StartError> {
        let facts = model.facts();
        let (core, startup) = model.core(options)?;
        let mut engine = Self::start(core, facts, options.max_num_waiting)?;
        engine.startup = startup;
        Ok(engine)
    }

    /// An engine around anything that runs steps. `max_num_waiting` requests may wait.
    ///
    /// # Errors
    /// [`StartError::Thread`].
    pub fn start<E>(
        core: EngineCore<E>,
        facts: ModelFacts,
        max_num_waiting: usize,
    ) -> Result<Self, StartError>
    where
        E: Executor<Job = AnswerJob> + Send + 'static,
    {
        let config = core.scheduler().config().clone();
        let shared = Arc::new(Shared::new(config, facts, max_num_waiting));
        let handle = EngineHandle { shared: shared.clone() };
        let thread = std::thread::Builder::new().name("strata-engine".into());
        let thread = thread.spawn(move || serve::run(core, &shared)).map_err(StartError::Thread)?;
        Ok(Self { handle, thread: Some(thread), startup: Startup::default() })
    }

    /// For whoever wants to ask it something.
    pub fn handle(&self) -> &EngineHandle {
        &self.handle
    }

    /// How it came to be.
    pub fn startup(&self) -> &Startup {
        &self.startup
    }

    /// End it, and whatever it is doing.
    ///
    /// # Errors
    /// [`EngineError::Failed`], if it failed before.
    pub fn shutdown(mut self) -> Result<(), EngineError> {
        self.end()
    }

    fn end(&mut self) -> Result<(), EngineError> {
        let ended = self.handle.shutdown();
        if let Some(thread) = self.thread.take() {
            // It catches its panics, and has told of them.
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
