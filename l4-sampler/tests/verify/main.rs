//! Drafts: whatever they are, what comes out is what plain sampling would have drawn.

#[path = "../support/chi_square.rs"]
mod chi_square;
#[path = "../support/judge.rs"]
mod judge;

mod drawn;
mod greedy;
mod law;
mod positions;
mod refusals;
mod rule;
mod toy;
