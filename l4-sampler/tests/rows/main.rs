//! What is done to one row of logits: parameters, random numbers, bans, penalties, filters, log probabilities.

#[path = "../support/chi_square.rs"]
mod chi_square;
#[path = "../support/judge.rs"]
mod judge;

mod params;
mod philox;
