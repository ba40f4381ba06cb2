//! Rings of minutes: the counts that a lane's report is made from.

use l5_scheduler::Time;

use super::histogram::{Histogram, Percentiles};
use super::report::{Rate, SloReport};
use super::{SloOptions, SloTargets};

/// Window of the rates: 24 hours.
pub const RATE_WINDOW_MINUTES: u64 = 24 * 60;

/// Number of the minute in which the clock begins. The minutes before it have numbers too, for what is restored from an
/// earlier process; minute 0, which an unused slot has, is in no window.
const FIRST_MINUTE: u64 = RATE_WINDOW_MINUTES;

/// Measurements of one lane.
///
/// Each minute of the clock has a slot in a ring, which is cleared when a later minute needs it. A window of `n`
/// minutes is the current minute, as far as it has passed, and the `n - 1` before it. Adding is O(1), reading merges
/// the minutes of the window, and memory is constant: about 23 KiB for the rates, and 4.5 KiB for each minute of
/// latencies.
///
/// The clock never goes back: a time before the latest minute counts in the latest minute.
#[derive(Clone, Debug)]
pub struct SloWindow {
    pub(super) options: SloOptions,
    /// Latest minute that was counted in. Minutes are numbered from [`FIRST_MINUTE`].
    pub(super) latest: u64,
    /// Minute `m` is in slot `m % RATE_WINDOW_MINUTES`.
    pub(super) rates: Vec<RateMinute>,
    /// Minute `m` is in slot `m % latencies.len()`.
    pub(super) latencies: Vec<LatencyMinute>,
}

/// Counts of one minute for the rates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct RateMinute {
    pub(super) minute: u64,
    pub(super) passed: u32,
    pub(super) checked: u32,
    pub(super) preempted: u32,
    pub(super) finished: u32,
}

/// Latencies of one minute.
#[derive(Clone, Debug, Default)]
pub(super) struct LatencyMinute {
    pub(super) minute: u64,
    pub(super) ttft: Histogram,
    pub(super) itl: Histogram,
    pub(super) admitted: Histogram,
}

impl SloWindow {
    /// Creates an empty window. A latency window that is out of bounds is taken as the nearest bound:
    /// [`SloOptions::errors`] reports it.
    pub fn new(options: SloOptions) -> Self {
        Self {
            options,
            latest: FIRST_MINUTE,
            rates: vec![RateMinute::default(); RATE_WINDOW_MINUTES as usize],
            latencies: vec![LatencyMinute::default(); options.latency_minutes() as usize],
        }
    }

    /// Takes other options. What was measured stays, as far as it is within the new window.
    pub fn configure(&mut self, options: SloOptions) {
        let minutes = options.latency_minutes();
        if minutes != self.options.latency_minutes() {
            let mut latencies = vec![LatencyMinute::default(); minutes as usize];
            for old in self.latencies.drain(..) {
                if within(old.minute, self.latest, minutes) {
                    let slot = (old.minute % minutes) as usize;
                    latencies[slot] = old;
                }
            }
            self.latencies = latencies;
        }
        self.options = options;
    }

    /// Options of the window.
    pub fn options(&self) -> &SloOptions {
        &self.options
    }

    /// Counts the first token of a request: seconds since its arrival, and since its admission.
    pub fn first_token(&mut self, now: Time, since_arrival: f64, since_admission: f64) {
        let slot = self.latency_slot(now);
        slot.ttft.count(since_arrival);
        slot.admitted.count(since_admission);
    }

    /// Counts a later token of a request: seconds since the token before.
    pub fn inter_token(&mut self, now: Time, seconds: f64) {
        self.latency_slot(now).itl.count(seconds);
    }

    /// Counts a finished request, which was preempted at least once or never.
    pub fn finished(&mut self, now: Time, preempted: bool) {
        let slot = self.rate_slot(now);
        slot.finished = slot.finished.saturating_add(1);
        slot.preempted = slot.preempted.saturating_add(u32::from(preempted)).min(slot.finished);
    }

    /// Counts a compile check that reached a verdict. An inconclusive one (a timeout, no code) is not counted.
    pub fn compile_checked(&mut self, now: Time, pass: bool) {
        let slot = self.rate_slot(now);
        slot.checked = slot.checked.saturating_add(1);
        slot.passed = slot.passed.saturating_add(u32::from(pass)).min(slot.checked);
    }

    /// Forgets everything: the lane has another model, so that its history describes another one.
    pub fn clear(&mut self) {
        *self = Self::new(self.options);
    }

    /// Compile checks of the last 24 hours.
    pub fn compile_pass(&self, now: Time) -> Rate {
        let passed = self.rate_minutes(now).map(|minute| u64::from(minute.passed)).sum();
        let checked = self.rate_minutes(now).map(|minute| u64::from(minute.checked)).sum();
        Rate::new(passed, checked)
    }

    /// Finished requests of the last 24 hours: the fraction that was preempted at least once.
    pub fn preempted_once(&self, now: Time) -> Rate {
        let preempted = self.rate_minutes(now).map(|minute| u64::from(minute.preempted)).sum();
        let finished = self.rate_minutes(now).map(|minute| u64::from(minute.finished)).sum();
        Rate::new(preempted, finished)
    }

    /// Percentiles of TTFT in the latency window.
    pub fn ttft(&self, now: Time) -> Percentiles {
        Percentiles::of(self.latency_minutes(now).map(|minute| &minute.ttft))
    }

    /// Percentiles of ITL in the latency window.
    pub fn itl(&self, now: Time) -> Percentiles {
        Percentiles::of(self.latency_minutes(now).map(|minute| &minute.itl))
    }

    /// Percentiles of the time from admission to first token in the latency window.
    pub fn admission_to_first_token(&self, now: Time) -> Percentiles {
        Percentiles::of(self.latency_minutes(now).map(|minute| &minute.admitted))
    }

    /// Everything measured, against the lane's targets.
    pub fn report(&self, now: Time, targets: &SloTargets) -> SloReport {
        SloReport::new(self, now, targets)
    }

    /// Minute of a time. A time that is not finite is the latest one.
    pub(super) fn minute(&self, now: Time) -> u64 {
        let seconds = now.seconds();
        let minute = if seconds.is_finite() { (seconds / 60.0) as u64 } else { 0 };
        FIRST_MINUTE.saturating_add(minute).max(self.latest)
    }

    /// Minutes of the rates that are within 24 hours.
    pub(super) fn rate_minutes(&self, now: Time) -> impl Iterator<Item = &RateMinute> {
        let minute = self.minute(now);
        self.rates.iter().filter(move |slot| within(slot.minute, minute, RATE_WINDOW_MINUTES))
    }

    /// Minutes of latencies that are within their window.
    pub(super) fn latency_minutes(&self, now: Time) -> impl Iterator<Item = &LatencyMinute> {
        let (minute, minutes) = (self.minute(now), self.latencies.len() as u64);
        self.latencies.iter().filter(move |slot| within(slot.minute, minute, minutes))
    }

    fn rate_slot(&mut self, now: Time) -> &mut RateMinute {
        self.latest = self.minute(now);
        rate_slot(&mut self.rates, self.latest)
    }

    fn latency_slot(&mut self, now: Time) -> &mut LatencyMinute {
        self.latest = self.minute(now);
        latency_slot(&mut self.latencies, self.latest)
    }
}

/// Whether a slot's minute is one of the last `minutes` up to `now`.
fn within(minute: u64, now: u64, minutes: u64) -> bool {
    minute <= now && now - minute < minutes
}

/// Slot of a minute, which is cleared if it held another.
pub(super) fn rate_slot(rates: &mut [RateMinute], minute: u64) -> &mut RateMinute {
    let index = (minute % rates.len() as u64) as usize;
    let slot = &mut rates[index];
    if slot.minute != minute {
        *slot = RateMinute { minute, ..RateMinute::default() };
    }
    slot
}

/// Slot of a minute, which is cleared if it held another.
pub(super) fn latency_slot(latencies: &mut [LatencyMinute], minute: u64) -> &mut LatencyMinute {
    let index = (minute % latencies.len() as u64) as usize;
    let slot = &mut latencies[index];
    if slot.minute != minute {
        slot.minute = minute;
        slot.ttft.clear();
        slot.itl.clear();
        slot.admitted.clear();
    }
    slot
}
