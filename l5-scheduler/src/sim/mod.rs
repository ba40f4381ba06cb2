//! Simulation: the real scheduler without a model, under a virtual clock.
//!
//! * [`replay`] runs a [`Scenario`], whose requests come with the output that they will get, and writes a [`Trace`] of
//!   every decision. vLLM's own scheduler was recorded in the same form, so the two can be compared step by step.
//! * A [`Planner`] runs any [`Arrivals`] under a [`VirtualClock`], which advances by a
//!   [`CostModel`](crate::CostModel), and makes a [`Report`]: latencies on that machine, and how many requests it could
//!   serve. A [`Workload`] of any size is an open loop; [`AgentJobs`] are a closed one, in which requests follow from
//!   the ends of earlier ones.

mod agent_report;
mod agents;
mod arrivals;
mod clock;
mod drafting;
mod durations;
mod fake;
mod goodput;
mod host_memory;
mod job_log;
mod jobs;
mod lengths;
mod lines;
mod planner;
mod replay;
mod replayable;
mod report;
mod scenario;
mod seconds;
mod sessions;
mod trace;
mod transfers;
mod workload;

pub use agent_report::{AgentReport, Percentiles, TurnHits};
pub use agents::{AgentSpec, Tool};
pub use arrivals::{Arrivals, Measured, Output};
pub use clock::VirtualClock;
pub use drafting::SpeculationReport;
pub use durations::Durations;
pub use fake::{FakeModel, Script};
pub use goodput::{Goodput, TimeUnit};
pub use host_memory::HostMemoryReport;
pub use job_log::{JobLog, JobRecord, TurnRecord};
pub use jobs::AgentJobs;
pub use lengths::Lengths;
pub use planner::{PlanError, Planner};
pub use replay::{MAX_STEPS, ReplayError, replay};
pub use replayable::ReplayableSteps;
pub use report::{Counts, GoodputReport, Latency, ReplayReport, Report, Usage};
pub use scenario::{
    Event, EventOp, Scenario, ScenarioConfig, ScenarioError, ScenarioRequest, Tables,
};
pub use seconds::{Lognormal, Seconds};
pub use sessions::{Session, SessionTurn, Sessions, is_session};
pub use trace::{ById, Rejected, Summary, Trace, TraceEvent, TraceStep};
pub use workload::{ArrivalProcess, SharedPrefix, Spec, Workload, WorkloadError};
