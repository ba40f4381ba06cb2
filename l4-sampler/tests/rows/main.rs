//! What is done to one row of logits: parameters, random numbers, bans, penalties, filters, log probabilities.

#[path = "../support/chi_square.rs"]
mod chi_square;
mod counting;
mod given;
mod goldens;
#[path = "../support/judge.rs"]
mod judge;

mod bans;
mod filters;
mod logprobs;
mod params;
mod penalties;
mod philox;
