//! Layer 5 of Strata: continuous batching.
//!
//! Each step, the scheduler chooses the requests that run; the executor computes their tokens in one forward pass; the
//! results are given back to the requests.
//!
//! # What to use
//!
//! * [`Llm`]: prompts in, responses out, in one call;
//! * [`Engine`] and [`EngineHandle`]: an engine on a dedicated thread, shared by many callers ([`engine`]);
//! * [`Generator`](generate::Generator): one request at a time, on the caller's thread ([`mod@generate`]);
//! * [`EngineCore`]: the loop of an engine, step by step.
//!
//! # What it is made of
//!
//! * [`Scheduler`]: which requests run in the next step and with which blocks ([`SchedulerConfig`]); its decisions are
//!   those of a [`Policy`] ([`policy`]), and the shapes of its steps those of a [`Composer`] ([`composer`]);
//! * [`Executor`]: runs a step: the model ([`ModelRunner`]), or a fake under a virtual clock;
//! * [`StepPlan`], [`StepView`], [`StepOutput`], [`Resolved`]: a planned step, what its executor sees, its output, and what
//!   counts of that;
//! * [`adapters`]: LoRA adapters of requests;
//! * [`lease`]: blocks that are held for an agent's next step.
//!
//! # What to measure with
//!
//! * [`sim`]: the scheduler under a virtual clock: [`sim::replay`] of a scenario, [`sim::Planner`] for a workload;
//! * [`trace`]: recordings of runs; [`CostModel`]: the duration of a step.

#![warn(missing_docs)]

pub mod adapters;
pub mod composer;
mod config;
mod core;
mod cost;
pub mod engine;
mod executor;
pub mod generate;
mod job_history;
mod jobs;
pub mod lease;
pub mod llm;
mod note;
pub mod policy;
mod queue;
mod request;
mod requests;
pub mod retention;
pub mod runner;
mod scheduler;
mod seats;
pub mod sim;
pub mod speculation;
mod step;
mod step_time;
pub mod tiers;
mod time;
mod token_lists;
pub mod trace;
mod turns;

pub use adapters::{AdapterFailure, AdapterRegistry, AdapterRejection, RequestAdapter};
pub use composer::{Compose, Composer, StepShape};
pub use config::{ConfigError, PoolError, SchedulerConfig};
pub use core::{EngineCore, StepObserver, StepResult};
pub use cost::{CostError, CostModel, Fit, StepLoad};
pub use engine::{
    DecodeTime, Engine, EngineError, EngineHandle, EngineOptions, EngineRequest, Load, OutputChunk,
    ResponseStream, SubmitError,
};
pub use executor::{Caps, ExecuteError, Executor, MalformedOutput, Phases, StepHandle, StepOutput};
pub use job_history::{JobHistory, JobHistorySnapshot, PinnedRequest};
pub use l4_sampler::FinishReason;
pub use lease::{Lease, LeaseId, LeaseState};
pub use llm::{Llm, LlmOptions};
pub use note::Note;
pub use policy::{
    Admit, Composed, LeaseEnd, Policy, PolicyContext, PolicyEvent, PolicyKind, SecondMemory, Victim,
};
pub use queue::Rank;
pub use request::{Adapter, Job, JobKey, Rejection, Request, RequestId};
pub use requests::{RequestView, Status};
pub use retention::{Leaving, Retain, Retention};
pub use runner::{
    ChoiceJob, DraftCounts, ModelRunner, OutputEnd, OutputSink, RelayFailure, TokenDelta,
};
pub use scheduler::{
    KvChange, KvChangeRecord, KvCompletion, KvConnector, KvFetches, LeaseStats, MAX_LOOKUP_SECONDS,
    Matched, Resolved, ResolvedRow, Scheduler, SchedulerStats,
};
pub use seats::{BySeat, Seat};
pub use step::{Admitted, RowView, StepOp, StepPlan, StepRow, StepView};
pub use time::Time;
pub use turns::{Turn, Turns};
