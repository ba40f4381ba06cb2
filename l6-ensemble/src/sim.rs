//! A simulator of an ensemble: admission and the real scheduler of each lane, under one virtual clock.
//!
//! Requests arrive by streams of a [`SimWorkload`], a router gives each a lane, the door of the lane admits or refuses
//! it ([`crate::admission`]), and the lane's [`Scheduler`](l5_scheduler::Scheduler) runs it on a fake model whose steps
//! take the time that a [`CostModel`](l5_scheduler::CostModel) says. Lanes share a device: their steps take turns, in
//! the order in which they asked, unless a lane has a device of its own. The door sees only what a server's door sees:
//! the rates that were measured, and the requests that it admitted.
//!
//! A workload may have lanes of its own, or be one for an ensemble file ([`EnsembleWorkload`]): then the router of the
//! server routes the texts of requests, and the escalation of the file acts on spill and priority floors. Shadows and
//! breakers are not simulated: they follow the verdicts about responses, and a simulated response says nothing.
//!
//! The truth about a refused request is a simulation in which it was admitted ([`EnsembleSim::probe`]).

mod device;
mod ensemble;
mod histogram;
mod lane;
mod report;
mod run;
#[cfg(test)]
mod tests;
mod traffic;
mod workload;

pub use ensemble::{EnsembleSimError, EnsembleWorkload, LaneOptions};
pub use histogram::{Histogram, Percentiles};
pub use report::{EscalationReport, LaneReport, QuoteReport, SimReport};
pub use run::{EnsembleSim, SimError};
pub use traffic::{MixRouter, Offered, Routed, SimRouter};
pub use workload::{SimLane, SimWorkload, Stream, WorkloadFileError};
