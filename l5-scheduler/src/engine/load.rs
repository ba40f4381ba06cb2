//! Load of an engine, for choosing between several.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

/// Load of an engine. The values may be of slightly different moments: they are read while the engine runs.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Load {
    /// Number of running requests.
    pub running: usize,
    /// Number of waiting requests, including those that the engine has not taken from its inbox yet.
    pub waiting: usize,
    /// Number of prompt tokens of requests without an output token.
    pub queued_tokens: usize,
    /// Maximum number of output tokens that are still to come.
    pub pending_output_tokens: usize,
    /// Estimated seconds of work, at the speed of the last steps; `None` before the first step.
    pub seconds: Option<f64>,
    /// Number of steps.
    pub steps: u64,
    /// Number of steps that were replays of a captured CUDA graph.
    pub replayed: u64,
}

impl Load {
    /// Fraction of steps that were replayed; `None` before the first step.
    pub fn replay_rate(&self) -> Option<f64> {
        (self.steps > 0).then(|| self.replayed as f64 / self.steps as f64)
    }
}

/// Counters that [`Load`] is read from, without a lock.
#[derive(Debug, Default)]
pub(super) struct Gauge {
    running: AtomicUsize,
    waiting: AtomicUsize,
    prompts: AtomicUsize,
    output: AtomicUsize,
    /// Nanoseconds per token, as bits of an `f64`: an exponential moving average over steps. 0 before the first step.
    ns_per_token: AtomicU64,
    steps: AtomicU64,
    replayed: AtomicU64,
}

/// Weight of the newest step in the moving average.
const NEWEST_STEP_WEIGHT: f64 = 0.1;

impl Gauge {
    pub(super) fn add(&self, prompt: usize, output: usize) {
        self.prompts.fetch_add(prompt, Ordering::Relaxed);
        self.output.fetch_add(output, Ordering::Relaxed);
    }

    pub(super) fn sub(&self, prompt: usize, output: usize) {
        self.prompts.fetch_sub(prompt, Ordering::Relaxed);
        self.output.fetch_sub(output, Ordering::Relaxed);
    }

    /// Sets the number of running and waiting requests. Called by the engine only.
    pub(super) fn set(&self, running: usize, waiting: usize) {
        self.running.store(running, Ordering::Relaxed);
        self.waiting.store(waiting, Ordering::Relaxed);
    }

    /// Counts a step. Called by the engine only.
    pub(super) fn step(&self, tokens: usize, took: Duration, replayed: bool) {
        if tokens == 0 {
            return;
        }
        self.steps.fetch_add(1, Ordering::Relaxed);
        self.replayed.fetch_add(u64::from(replayed), Ordering::Relaxed);
        let new = took.as_nanos() as f64 / tokens as f64;
        let old = f64::from_bits(self.ns_per_token.load(Ordering::Relaxed));
        let mean = if old == 0.0 { new } else { old + NEWEST_STEP_WEIGHT * (new - old) };
        self.ns_per_token.store(mean.to_bits(), Ordering::Relaxed);
    }

    pub(super) fn read(&self, in_the_inbox: usize) -> Load {
        let queued_tokens = self.prompts.load(Ordering::Relaxed);
        let pending_output_tokens = self.output.load(Ordering::Relaxed);
        let ns_per_token = f64::from_bits(self.ns_per_token.load(Ordering::Relaxed));
        let tokens = queued_tokens.saturating_add(pending_output_tokens) as f64;
        Load {
            running: self.running.load(Ordering::Relaxed),
            waiting: self.waiting.load(Ordering::Relaxed) + in_the_inbox,
            queued_tokens,
            pending_output_tokens,
            seconds: (ns_per_token > 0.0).then_some(tokens * ns_per_token / 1e9),
            steps: self.steps.load(Ordering::Relaxed),
            replayed: self.replayed.load(Ordering::Relaxed),
        }
    }
}
