//! Floor 5 of Strata: continuous batching.
//!
//! Every step asks who can run, packs them into one forward pass, and deals the tokens out.
//!
//! * [`Scheduler`]: who runs in the next step and with which blocks; a [`Policy`] answers its questions;
//! * [`Executor`]: what runs a step: the model, or a fake one under a virtual clock;
//! * [`ModelRunner`]: the model as an executor, with what each request wants of its tokens;
//! * [`EngineCore`]: the two together, a step at a time;
//! * [`Step`], [`StepView`], [`StepOutput`], [`Resolved`]: what goes to and fro between the two.

#![warn(missing_docs)]

mod config;
mod core;
mod cost;
pub mod engine;
mod executor;
pub mod lease;
pub mod llm;
pub mod policy;
mod queue;
mod request;
mod requests;
pub mod runner;
mod scheduler;
pub mod sim;
mod step;
mod time;
pub mod trace;

pub use config::{ConfigError, PoolError, SchedulerConfig};
pub use core::{EngineCore, StepObserver, StepResult};
pub use cost::{CostError, CostModel, Fit, StepLoad};
pub use engine::{
    Answer, Engine, EngineError, EngineHandle, EngineOptions, EngineRequest, Load, Piece,
    SubmitError,
};
pub use executor::{Caps, ExecuteError, Executor, Phases, StepOutput};
pub use lease::{Lease, LeaseId};
pub use llm::{Llm, LlmOptions};
pub use policy::{Admit, Composed, Policy, PolicyKind, Retain, Victim};
pub use queue::Rank;
pub use request::{Adapter, FinishReason, Job, Rejection, Request, RequestId};
pub use requests::{RequestView, Status};
pub use runner::{AnswerEnd, AnswerJob, AnswerSink, ModelRunner, News};
pub use scheduler::{KvSource, Resolved, Scheduler, SchedulerStats};
pub use step::{Admitted, RowView, Step, StepOp, StepRow, StepView};
pub use time::Time;
