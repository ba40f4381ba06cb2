//! Blocks in a device's memory: whole models over them, and single steps.
//!
//! Where there is no GPU, a CPU stands in for one and runs the same kernels; `STRATA_TEST_DEVICE=cuda`
//! takes the real one.

mod exchange;
#[path = "../../../l2-model/tests/judge/mod.rs"]
mod judge;
mod models;
mod padding;
mod refused;
mod sizing;
mod state;
