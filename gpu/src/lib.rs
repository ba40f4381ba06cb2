//! Checks and benchmarks that need a GPU, as one program that can be copied to a machine with one.
//!
//! * [`parity`] compares the device with the CPU, op by op and with whole models. The same checks run in `cargo test`
//!   on an emulated device.
//! * [`bench`](mod@bench) measures the limits of the device, and kernels and models against them.
//! * [`report`] writes the results, as JSON and as a table.
//! * [`compare`] runs transformers on the same machine, on a model of the same shape.
//!
//! Nothing here is part of serving. It uses all layers up to the scheduler, and none uses it.

#![warn(missing_docs)]

pub mod bench;
pub mod compare;
mod context;
mod numbers;
pub mod parity;
pub mod report;
pub mod sanitize;
pub mod step;

pub use context::{Context, Size};
pub use numbers::Numbers;
