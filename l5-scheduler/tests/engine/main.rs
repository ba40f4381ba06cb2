//! The engine on its thread, and the offline `Llm` over it.

mod adapters;
mod ahead;
mod allocations;
mod counting;
mod device;
mod ending;
mod failing;
mod fake;
mod idle;
mod leasing;
mod llm;
mod load;
#[path = "../support/naive.rs"]
mod naive;
mod neighbours;
mod reading;
mod relay;
mod second_memory;
mod submitting;
mod tiers;
