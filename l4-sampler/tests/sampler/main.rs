//! Rows of logits to tokens: draws, the fast path beside the one that one reads, and what rows of a batch must not know
//! of each other.

#[path = "../support/chi_square.rs"]
mod chi_square;
#[path = "../support/judge.rs"]
mod judge;

mod agreement;
mod batch;
mod draws;
mod given;
mod residual;
mod shares;
