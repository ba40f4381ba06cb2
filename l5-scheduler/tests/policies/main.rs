//! Preemption, leases, loads and shapes of steps under all policies; and the scheduler against a naive one.

mod abandon;
mod aborts;
mod alone;
mod context_serve;
mod driver;
mod fetched;
mod fuzz;
mod learning;
mod leases;
mod naive;
mod prediction;
mod reranking;
mod retentions;
mod second_memory;
mod starvation;
mod strict;
