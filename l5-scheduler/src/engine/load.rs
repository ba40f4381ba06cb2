//! Load of an engine, for choosing between several, and for admission.

mod deadlines;

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::step_time::StepTime;
pub(super) use crate::step_time::StepTimeFit;
use crate::{RequestId, Scheduler, StepLoad, Time};
pub(super) use deadlines::Deadline;
use deadlines::Deadlines;

/// Load of an engine. The values may be of slightly different moments: they are read while the engine runs.
///
/// Prefill and decode have a rate each, since a prompt token costs a fraction of a decode step: a decode step reads all
/// weights of the model for one token of each row, and the tokens of a prompt share one such read. A mean over all
/// tokens would change with the mix of prompts and outputs, and would be right for neither.
///
/// The rates are fitted to the recent steps, under the assumption that the duration of a step is linear:
///
/// ```text
/// seconds = base + per_row * decode rows + prefill_seconds_per_token * prompt tokens
///         + verify_seconds_per_token * drafts
/// ```
///
/// A decode row is a row of one token, or of one token and drafts; the tokens of all other rows count as prompt tokens. The model leaves out the
/// lengths of contexts, which change slowly, and the padding of captured decode steps. A duration that can be explained
/// in several ways is counted for the rows first, then for the prompt tokens, the drafts, and the base:
///
/// * After a single step, every token costs the same.
/// * While all decode steps had the same width, the base is 0 and the rows have the ratio of duration to width. It is
///   exact at this width, too high for greater widths and too low for smaller ones.
/// * A rate that the recent steps say nothing about keeps its value.
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
    /// Seconds that each prompt token adds to a step; `None` before the first step.
    pub prefill_seconds_per_token: Option<f64>,
    /// Seconds that each draft adds to a step; `None` before the first draft.
    pub verify_seconds_per_token: Option<f64>,
    /// Duration of a decode step; `None` before the first step.
    pub decode_time: Option<DecodeTime>,
    /// Estimated seconds of work: the prompt tokens at the prefill rate, then the pending output tokens in decode steps
    /// of the present width. `None` before the first step.
    pub seconds: Option<f64>,
    /// Number of preemptions since the start.
    pub preemptions: u64,
    /// Slack: seconds until the earliest deadline of an unfinished request, running or waiting; negative when it has
    /// passed. `None` if no unfinished request has a deadline.
    pub slack: Option<f64>,
    /// Number of steps.
    pub steps: u64,
    /// Number of steps that were replays of a captured CUDA graph.
    pub replayed: u64,
}

/// Duration of a decode step as a linear function of its width: `base + per_row * width`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct DecodeTime {
    /// Seconds of any step.
    pub base: f64,
    /// Seconds for each row of one token.
    pub per_row: f64,
}

impl Load {
    /// Duration, in seconds, of a step that decodes one token for each of `width` requests and computes no prompt
    /// tokens. `None` before the first step. The [type](Self) says what it is estimated from.
    pub fn decode_step_seconds(&self, width: usize) -> Option<f64> {
        self.decode_time.map(|time| time.base + time.per_row * width as f64)
    }

    /// Fraction of steps that were replayed; `None` before the first step.
    pub fn replay_rate(&self) -> Option<f64> {
        (self.steps > 0).then(|| self.replayed as f64 / self.steps as f64)
    }

    /// Estimate of [`Load::seconds`] from the other values.
    fn estimate(&self) -> Option<f64> {
        let width = self.running.max(1);
        let prefill = self.prefill_seconds_per_token? * self.queued_tokens as f64;
        let steps = self.pending_output_tokens as f64 / width as f64;
        Some(prefill + steps * self.decode_step_seconds(width)?)
    }
}

/// Measures the rates of [`Load`] for an engine that has no thread, such as a simulated one: the same fit as that of an
/// [`Engine`](super::Engine).
///
/// # Example
///
/// ```
/// use std::time::Duration;
///
/// use l5_scheduler::{StepLoad, engine::LoadMeter};
///
/// let mut meter = LoadMeter::default();
/// assert_eq!(meter.load().decode_step_seconds(1), None, "nothing is known before the first step");
/// meter.step(&StepLoad { decode_tokens: 4, ..StepLoad::default() }, Duration::from_millis(8));
/// assert_eq!(meter.load().decode_step_seconds(4), Some(0.008));
/// ```
#[derive(Debug, Default)]
pub struct LoadMeter {
    fit: StepTimeFit,
    load: Load,
}

impl LoadMeter {
    /// Counts a step with its duration, from the moment at which the engine could have begun it: a wait for a device
    /// that several engines share is part of it.
    pub fn step(&mut self, work: &StepLoad, took: Duration) {
        let time = self.fit.add(work, took);
        self.load.steps += 1;
        self.load.prefill_seconds_per_token = Some(time.per_prefill_token);
        self.load.verify_seconds_per_token = time.per_draft;
        self.load.decode_time = Some(DecodeTime { base: time.base, per_row: time.per_decode_row });
    }

    /// The rates and the number of steps. All other fields are those of an engine without requests.
    pub fn load(&self) -> Load {
        self.load
    }
}

/// Counters that [`Load`] is read from, without a lock.
#[derive(Debug)]
pub(super) struct Gauge {
    /// Start of the clock by which deadlines are kept. It is that of all who read the slack.
    began: Instant,
    running: AtomicUsize,
    waiting: AtomicUsize,
    preemptions: AtomicU64,
    prompts: AtomicUsize,
    output: AtomicUsize,
    base: AtomicSeconds,
    per_decode_row: AtomicSeconds,
    per_prefill_token: AtomicSeconds,
    per_draft: AtomicSeconds,
    deadlines: Deadlines,
    steps: AtomicU64,
    replayed: AtomicU64,
}

/// Seconds that one thread writes and others read, or none.
#[derive(Debug)]
struct AtomicSeconds(AtomicU64);

impl Default for AtomicSeconds {
    fn default() -> Self {
        Self(AtomicU64::new(Self::NONE.to_bits()))
    }
}

impl AtomicSeconds {
    const NONE: f64 = f64::NAN;

    fn set(&self, seconds: Option<f64>) {
        self.0.store(seconds.unwrap_or(Self::NONE).to_bits(), Ordering::Relaxed);
    }

    fn get(&self) -> Option<f64> {
        let seconds = f64::from_bits(self.0.load(Ordering::Relaxed));
        (!seconds.is_nan()).then_some(seconds)
    }
}

impl Gauge {
    /// Creates the gauge of an engine that has no requests. Its clock starts now.
    pub(super) fn new() -> Self {
        Self {
            began: Instant::now(),
            running: AtomicUsize::default(),
            waiting: AtomicUsize::default(),
            preemptions: AtomicU64::default(),
            prompts: AtomicUsize::default(),
            output: AtomicUsize::default(),
            base: AtomicSeconds::default(),
            per_decode_row: AtomicSeconds::default(),
            per_prefill_token: AtomicSeconds::default(),
            per_draft: AtomicSeconds::default(),
            deadlines: Deadlines::default(),
            steps: AtomicU64::default(),
            replayed: AtomicU64::default(),
        }
    }

    pub(super) fn add(&self, prompt: usize, output: usize) {
        self.prompts.fetch_add(prompt, Ordering::Relaxed);
        self.output.fetch_add(output, Ordering::Relaxed);
    }

    pub(super) fn sub(&self, prompt: usize, output: usize) {
        self.prompts.fetch_sub(prompt, Ordering::Relaxed);
        self.output.fetch_sub(output, Ordering::Relaxed);
    }

    /// Adds the deadline of a request that was submitted at this time and should be finished `within` a duration.
    /// Returns the deadline, for [`Gauge::remove_deadline`] when the request ends.
    pub(super) fn add_deadline(&self, id: RequestId, at: Instant, within: Duration) -> Deadline {
        let submitted = at.saturating_duration_since(self.began);
        let deadline = (Time(submitted.as_secs_f64() + within.as_secs_f64()), id);
        self.deadlines.add(deadline);
        deadline
    }

    pub(super) fn remove_deadline(&self, deadline: Deadline) {
        self.deadlines.remove(deadline);
    }

    /// Publishes the scheduler's counts of requests. Called by the engine only.
    pub(super) fn publish(&self, scheduler: &Scheduler) {
        self.running.store(scheduler.num_running(), Ordering::Relaxed);
        self.waiting.store(scheduler.num_waiting(), Ordering::Relaxed);
        self.preemptions.store(scheduler.stats().preemptions, Ordering::Relaxed);
    }

    /// Publishes the counts of requests of an engine without a scheduler. Called by the engine only.
    pub(super) fn publish_counts(&self, running: usize, waiting: usize) {
        self.running.store(running, Ordering::Relaxed);
        self.waiting.store(waiting, Ordering::Relaxed);
    }

    /// Publishes the seconds of a prompt token and of an output token of relayed requests. Called by the engine only.
    pub(super) fn relayed(&self, per_prefill_token: f64, base: f64) {
        self.step(StepTime { base, per_prefill_token, ..StepTime::default() }, false);
    }

    /// Publishes that there are no requests, because the engine has ended. Called by the engine only.
    pub(super) fn end(&self) {
        self.running.store(0, Ordering::Relaxed);
        self.waiting.store(0, Ordering::Relaxed);
    }

    /// Counts a step, and publishes the fit that includes it. Called by the engine only.
    pub(super) fn step(&self, time: StepTime, replayed: bool) {
        self.steps.fetch_add(1, Ordering::Relaxed);
        self.replayed.fetch_add(u64::from(replayed), Ordering::Relaxed);
        self.base.set(Some(time.base));
        self.per_decode_row.set(Some(time.per_decode_row));
        self.per_prefill_token.set(Some(time.per_prefill_token));
        self.per_draft.set(time.per_draft);
    }

    /// Reads the load. `in_the_inbox` requests wait where the scheduler does not count them yet.
    pub(super) fn read(&self, in_the_inbox: usize) -> Load {
        self.read_at(Time(self.began.elapsed().as_secs_f64()), in_the_inbox)
    }

    fn read_at(&self, now: Time, in_the_inbox: usize) -> Load {
        let (base, per_row) = (self.base.get(), self.per_decode_row.get());
        let load = Load {
            running: self.running.load(Ordering::Relaxed),
            waiting: self.waiting.load(Ordering::Relaxed) + in_the_inbox,
            queued_tokens: self.prompts.load(Ordering::Relaxed),
            pending_output_tokens: self.output.load(Ordering::Relaxed),
            prefill_seconds_per_token: self.per_prefill_token.get(),
            verify_seconds_per_token: self.per_draft.get(),
            decode_time: base.zip(per_row).map(|(base, per_row)| DecodeTime { base, per_row }),
            seconds: None,
            preemptions: self.preemptions.load(Ordering::Relaxed),
            slack: self.deadlines.earliest().map(|deadline| deadline - now),
            steps: self.steps.load(Ordering::Relaxed),
            replayed: self.replayed.load(Ordering::Relaxed),
        };
        Load { seconds: load.estimate(), ..load }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A gauge that has published this step time.
    fn gauge(base: f64, per_decode_row: f64, per_prefill_token: f64) -> Gauge {
        let gauge = Gauge::new();
        gauge.step(StepTime { base, per_decode_row, per_prefill_token, per_draft: None }, false);
        gauge
    }

    #[test]
    fn nothing_is_known_before_the_first_step() {
        let gauge = Gauge::new();
        gauge.add(10, 50);
        let load = gauge.read(0);
        assert_eq!((load.queued_tokens, load.pending_output_tokens), (10, 50));
        assert_eq!((load.seconds, load.prefill_seconds_per_token), (None, None));
        assert_eq!(load.verify_seconds_per_token, None);
        assert_eq!(load.decode_step_seconds(1), None);
    }

    #[test]
    fn the_seconds_are_prompts_at_their_rate_and_output_in_steps_of_the_present_width() {
        let gauge = gauge(0.004, 0.0005, 0.0001);
        gauge.add(2000, 600);
        let near = |got: Option<f64>, want: f64| {
            assert!(got.is_some_and(|got| (got / want - 1.0).abs() < 1e-12), "{got:?}, not {want}");
        };
        // Nothing runs: the width is 1, whose steps take 4.5 ms.
        near(gauge.read(3).seconds, 2000.0 * 0.0001 + 600.0 * 0.0045);
        gauge.running.store(8, Ordering::Relaxed);
        // 75 steps of 8 ms.
        near(gauge.read(3).seconds, 2000.0 * 0.0001 + 75.0 * 0.008);
        near(gauge.read(3).decode_step_seconds(16), 0.012);
        assert_eq!((gauge.read(3).running, gauge.read(3).waiting), (8, 3));
        gauge.sub(2000, 600);
        assert_eq!(gauge.read(0).seconds, Some(0.0));
    }

    #[test]
    fn the_slack_goes_by_the_clock_and_not_by_steps() {
        let gauge = Gauge::new();
        let slack_at = |now| gauge.read_at(Time(now), 0).slack;
        assert_eq!(slack_at(0.0), None, "no request has a deadline");
        let late = gauge.add_deadline(RequestId(1), gauge.began, Duration::from_secs(8));
        let at = gauge.began + Duration::from_secs(2);
        let early = gauge.add_deadline(RequestId(2), at, Duration::from_secs(3));
        assert_eq!(
            (slack_at(1.0), slack_at(5.0), slack_at(7.5)),
            (Some(4.0), Some(0.0), Some(-2.5))
        );
        gauge.remove_deadline(early);
        assert_eq!((slack_at(7.5), slack_at(9.0)), (Some(0.5), Some(-1.0)));
        gauge.remove_deadline(late);
        assert_eq!(slack_at(9.0), None);
    }
}
