//! The scheduler without a model: the same decisions, under a clock that costs nothing.
//!
//! * [`replay`] plays a [`Scenario`], whose requests come with the answers that they will get, and writes a [`Trace`] of
//!   every decision. vLLM's own scheduler was recorded in the same form, so the two can be laid side by side.

mod fake;
mod replay;
mod scenario;
mod trace;

pub use fake::{FakeModel, Script};
pub use replay::{MOST_STEPS, ReplayError, replay};
pub use scenario::{
    Event, EventOp, Scenario, ScenarioConfig, ScenarioError, ScenarioRequest, Tables,
};
pub use trace::{ById, Rejected, Summary, Trace, TraceEvent, TraceStep};
