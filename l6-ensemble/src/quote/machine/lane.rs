//! A lane of the [`Machine`](super::Machine): its seats, its queue, and the prompts of its steps.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use l5_scheduler::Rank;

use super::Number;
use crate::quote::work::{LaneWork, Rates};

#[derive(Clone)]
pub(super) struct Lane {
    pub(super) rates: Rates,
    pub(super) seats: usize,
    pub(super) step_tokens: f64,
    pub(super) preempts: bool,
    /// Priority of the first request, and whether others have another one.
    pub(super) priority: Option<i64>,
    pub(super) is_mixed: bool,
    /// Requests with a seat, and how many of them decode.
    pub(super) seated: Vec<Number>,
    pub(super) decoding: usize,
    /// Requests without a seat, in the order of the policy.
    pub(super) waiting: BinaryHeap<Reverse<(Rank, Number)>>,
    /// Fraction of a round after which its steps end.
    pub(super) phase: f64,
    /// Requests that prefill, and the tokens of their prompts that are left at `since`.
    pub(super) prefilling: VecDeque<(Number, f64)>,
    /// Rounds at which its prompts were looked at last, and at which they are looked at next.
    pub(super) since: f64,
    pub(super) change: f64,
    /// Tokens of prompts in each step meanwhile, and the seconds that they add to a round.
    pub(super) prompt_tokens: f64,
    pub(super) prompt_seconds: f64,
}

impl Lane {
    /// A lane without requests.
    pub(super) fn new(work: &LaneWork) -> Self {
        Self {
            rates: work.rates,
            seats: work.seats,
            step_tokens: work.step_tokens,
            preempts: work.preempts,
            priority: None,
            is_mixed: false,
            seated: Vec::with_capacity(work.seats),
            decoding: 0,
            waiting: BinaryHeap::with_capacity(work.waiting.len()),
            phase: 0.0,
            prefilling: VecDeque::new(),
            since: 0.0,
            change: f64::INFINITY,
            prompt_tokens: 0.0,
            prompt_seconds: 0.0,
        }
    }

    /// Seconds of a step, but for prompts.
    pub(super) fn step(&self) -> f64 {
        if self.seated.is_empty() { 0.0 } else { self.rates.step(self.decoding as f64) }
    }

    /// Tokens that a step has for prompts.
    pub(super) fn budget(&self) -> f64 {
        (self.step_tokens - self.decoding as f64).max(1.0)
    }

    /// Tokens of prompts with a seat.
    pub(super) fn prompt_left(&self) -> f64 {
        self.prefilling.iter().map(|(_, left)| left).sum()
    }

    /// The first end of a step after these rounds.
    pub(super) fn next_end(&self, rounds: f64) -> f64 {
        self.phase + (rounds - self.phase).floor() + 1.0
    }
}
