//! Preemption, leases and loads under all policies; and the scheduler against a naive one.

mod abandon;
mod aborts;
mod driver;
mod fetched;
mod fuzz;
mod leases;
mod naive;
mod prediction;
mod strict;
