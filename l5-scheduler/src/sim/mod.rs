//! The scheduler without a model: the same decisions, under a clock that costs nothing.
//!
//! * [`replay`] plays a [`Scenario`], whose requests come with the answers that they will get, and writes a [`Trace`] of
//!   every decision. vLLM's own scheduler was recorded in the same form, so the two can be laid side by side.
//! * A [`Planner`] runs a [`Workload`] of any size under a [`VirtualClock`], which goes as far as a
//!   [`CostModel`](crate::CostModel) says that a step takes, and makes a [`Report`]: how long requests would wait on that
//!   machine, and how many of them it could serve.

mod clock;
mod durations;
mod fake;
mod goodput;
mod lengths;
mod planner;
mod replay;
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
pub use replay::{MOST_STEPS, ReplayError, replay};
pub use report::{Counts, Good, Latency, Report, Usage};
pub use scenario::{
    Event, EventOp, Scenario, ScenarioConfig, ScenarioError, ScenarioRequest, Tables,
};
pub use trace::{ById, Rejected, Summary, Trace, TraceEvent, TraceStep};
pub use workload::{Arrivals, SharedPrefix, Spec, Workload, WorkloadError};
