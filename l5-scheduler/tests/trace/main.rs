//! Recordings of runs: what is written of a run, what is read back, and what is made of it.

mod chrome;
mod ensemble;
mod leases;
mod model;
mod reading;
mod recording;
#[path = "../../../l1-tensor/tests/support/runtime.rs"]
mod runtime;
mod world;
