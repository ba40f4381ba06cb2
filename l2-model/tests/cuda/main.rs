//! Whole models on a CUDA device, against transformers' goldens and against the CPU.
//!
//! Where there is no GPU, a CPU stands in for one and runs the same kernels; `STRATA_TEST_DEVICE=cuda`
//! takes the real one.

mod adapters;
mod draft_heads;
#[path = "../support/golden.rs"]
mod golden;
#[path = "../judge/mod.rs"]
mod judge;
mod models;
mod nvfp4;
mod parity;
mod refused;
mod replayed;
mod state;
