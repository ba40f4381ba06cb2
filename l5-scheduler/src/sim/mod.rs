//! Simulation: the real scheduler without a model, under a virtual clock.
//!
//! * [`replay`] runs a [`Scenario`], whose requests come with the output that they will get, and writes a [`Trace`] of
//!   every decision. vLLM's own scheduler was recorded in the same form, so the two can be compared step by step.
//! * A [`Planner`] runs a [`Workload`] of any size under a [`VirtualClock`], which advances by a
//!   [`CostModel`](crate::CostModel), and makes a [`Report`]: latencies on that machine, and how many requests it could
//!   serve.

mod clock;
mod durations;
mod fake;
mod goodput;
mod lengths;
mod planner;
mod replay;
mod replayable;
mod report;
mod scenario;
mod trace;
mod workload;

pub use clock::VirtualClock;
pub use durations::Durations;
pub use fake::{FakeModel, Script};
pub use goodput::{Goodput, TimeUnit};
pub use lengths::Lengths;
pub use planner::{PlanError, Planner};
pub use replay::{MAX_STEPS, ReplayError, replay};
pub use replayable::ReplayableSteps;
pub use report::{Counts, GoodputReport, Latency, ReplayReport, Report, Usage};
pub use scenario::{
    Event, EventOp, Scenario, ScenarioConfig, ScenarioError, ScenarioRequest, Tables,
};
pub use trace::{ById, Rejected, Summary, Trace, TraceEvent, TraceStep};
pub use workload::{Arrivals, SharedPrefix, Spec, Workload, WorkloadError};
