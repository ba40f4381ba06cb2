//! How busy an engine is, for whoever chooses between several.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

/// How busy an engine is. The numbers are of one moment or the next: they are read while the engine goes on.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Load {
    /// Requests that run.
    pub running: usize,
    /// Requests that wait, those included that the engine has not looked at yet.
    pub waiting: usize,
    /// Tokens of prompts that no answer has come to yet.
    pub queued_tokens: usize,
    /// Tokens of answers that are still to come, at most.
    pub owed_tokens: usize,
    /// How long all of that takes at the speed of the last steps; `None` before the first one.
    pub seconds: Option<f64>,
    /// Steps since the engine began.
    pub steps: u64,
    /// Those of them that had been captured and were launched as a whole.
    pub replayed: u64,
}

impl Load {
    /// The share of steps that were replayed. `None` before the first step.
    pub fn replay_rate(&self) -> Option<f64> {
        (self.steps > 0).then(|| self.replayed as f64 / self.steps as f64)
    }
}

/// What [`Load`] is read from, without a lock.
#[derive(Debug, Default)]
pub(super) struct Gauge {
    running: AtomicUsize,
    waiting: AtomicUsize,
    prompts: AtomicUsize,
    owed: AtomicUsize,
    /// Nanoseconds a token, as an `f64`'s bits: a mean in which the last steps count most. 0: no step yet.
    pace: AtomicU64,
    steps: AtomicU64,
    replayed: AtomicU64,
}

/// What the newest step counts in the mean.
const NEWEST: f64 = 0.1;

impl Gauge {
    pub(super) fn add(&self, prompt: usize, owed: usize) {
        self.prompts.fetch_add(prompt, Ordering::Relaxed);
        self.owed.fetch_add(owed, Ordering::Relaxed);
    }

    pub(super) fn sub(&self, prompt: usize, owed: usize) {
        self.prompts.fetch_sub(prompt, Ordering::Relaxed);
        self.owed.fetch_sub(owed, Ordering::Relaxed);
    }

    /// Who is where, between two steps. Only the engine says so.
    pub(super) fn set(&self, running: usize, waiting: usize) {
        self.running.store(running, Ordering::Relaxed);
        self.waiting.store(waiting, Ordering::Relaxed);
    }

    /// A step took so long, and was replayed or not. Only the engine says so.
    pub(super) fn step(&self, tokens: usize, took: Duration, replayed: bool) {
        if tokens == 0 {
            return;
        }
        self.steps.fetch_add(1, Ordering::Relaxed);
        self.replayed.fetch_add(u64::from(replayed), Ordering::Relaxed);
        let new = took.as_nanos() as f64 / tokens as f64;
        let old = f64::from_bits(self.pace.load(Ordering::Relaxed));
        let mean = if old == 0.0 { new } else { old + NEWEST * (new - old) };
        self.pace.store(mean.to_bits(), Ordering::Relaxed);
    }

    pub(super) fn read(&self, in_the_inbox: usize) -> Load {
        let queued_tokens = self.prompts.load(Ordering::Relaxed);
        let owed_tokens = self.owed.load(Ordering::Relaxed);
        let pace = f64::from_bits(self.pace.load(Ordering::Relaxed));
        let tokens = queued_tokens.saturating_add(owed_tokens) as f64;
        Load {
            running: self.running.load(Ordering::Relaxed),
            waiting: self.waiting.load(Ordering::Relaxed) + in_the_inbox,
            queued_tokens,
            owed_tokens,
            seconds: (pace > 0.0).then_some(tokens * pace / 1e9),
            steps: self.steps.load(Ordering::Relaxed),
            replayed: self.replayed.load(Ordering::Relaxed),
        }
    }
}
