//! Service level objectives of one lane: what it promises, what it has measured, and whether it keeps its promise.
//!
//! A lane has one [`SloWindow`]. It counts, under the caller's clock:
//!
//! * **TTFT**: time from a request's arrival at the server to its first output token;
//! * **ITL**: time between two output tokens of a request;
//! * **admission to first token**: as TTFT, from the moment at which the request was admitted. The difference to TTFT
//!   is what parsing, routing and rendering took;
//! * **compile pass**: fraction of compile checks that passed;
//! * **preempted once**: fraction of finished requests that were preempted at least once.
//!
//! Latencies are percentiles over a short window ([`SloOptions::latency_window`]), rates are over 24 hours. A latency
//! changes within minutes, and each request gives a sample. The correctness of a model drifts slowly, and only a
//! sampled part of the responses is compiled, so that a rate of the last minutes would be noise.
//!
//! Nothing here adds up lanes: a percentile over the requests of several specialists describes none of them. Each lane
//! has its own report, and there is no function that merges two.
//!
//! # Example
//!
//! ```
//! use std::time::Duration;
//! use l5_scheduler::Time;
//! use l6_ensemble::slo::{SloOptions, SloTargets, SloWindow};
//!
//! let mut window = SloWindow::new(SloOptions::default());
//! for i in 0..100 {
//!     window.first_token(Time(f64::from(i)), 0.2, 0.19);
//! }
//! let targets = SloTargets { ttft: Some(Duration::from_millis(300)), ..SloTargets::default() };
//! let report = window.report(Time(100.0), &targets);
//! assert_eq!(report.objectives.ttft.met, Some(true));
//! assert_eq!(report.objectives.itl.met, None, "no target, and nothing measured");
//! ```

mod histogram;
mod report;
mod snapshot;
mod targets;
mod window;

#[cfg(test)]
mod tests;

pub use histogram::Percentiles;
pub use report::{Objective, Objectives, Rate, SloReport};
pub use snapshot::{MAX_SNAPSHOT_BYTES, SnapshotError};
pub use targets::{SloOptions, SloTargets};
pub use window::{RATE_WINDOW_MINUTES, SloWindow};
