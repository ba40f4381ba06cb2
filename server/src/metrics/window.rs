//! Rates and percentiles of the last minute.
//!
//! Each second has its own counts, which are cleared a minute later. Times are counted in buckets 5 percent wide, so
//! that memory is constant, and adding is one increment.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::state::{Recent, Spread};

/// Length of the window, in seconds.
const WINDOW_SECONDS: usize = 60;

/// Shortest time that differs from 0, in seconds.
const MIN_SECONDS: f64 = 1e-5;

/// Ratio of the times of a bucket to those of the one below.
const BUCKET_RATIO: f64 = 1.05;

/// Number of buckets: times up to `MIN_SECONDS * BUCKET_RATIO^(NUM_BUCKETS - 1)`, which is more than ten minutes.
const NUM_BUCKETS: usize = 384;

/// The last minute.
#[derive(Debug)]
pub struct Window {
    began: Instant,
    /// Counts of second `n`, in slot `n % WINDOW_SECONDS`.
    slots: Vec<Slot>,
    /// Latest second with a slot.
    now: u64,
}

/// The last minute of all replicas together. Clones share it.
#[derive(Clone, Debug)]
pub struct SharedWindow(Arc<Mutex<Window>>);

impl SharedWindow {
    /// A window that begins now.
    pub fn new(now: Instant) -> Self {
        Self(Arc::new(Mutex::new(Window::new(now))))
    }

    /// The window, for a few additions.
    pub fn lock(&self) -> MutexGuard<'_, Window> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Rates and times of the last minute.
    pub fn recent(&self, now: Instant) -> Recent {
        self.lock().recent(now)
    }
}

#[derive(Clone, Debug)]
struct Slot {
    prompt: u64,
    generated: u64,
    first: Vec<u32>,
    between: Vec<u32>,
}

impl Slot {
    fn clear(&mut self) {
        (self.prompt, self.generated) = (0, 0);
        self.first.fill(0);
        self.between.fill(0);
    }
}

impl Window {
    /// Creates a window that begins now.
    pub fn new(now: Instant) -> Self {
        let slot = Slot {
            prompt: 0,
            generated: 0,
            first: vec![0; NUM_BUCKETS],
            between: vec![0; NUM_BUCKETS],
        };
        Self { began: now, slots: vec![slot; WINDOW_SECONDS], now: 0 }
    }

    /// Counts a request's first token.
    pub fn first(&mut self, now: Instant, prompt_tokens: usize, seconds: f64) {
        if let Some(slot) = self.slot(now) {
            slot.prompt += prompt_tokens as u64;
            count(&mut slot.first, seconds);
        }
    }

    /// Counts a later token, with the time since the one before.
    pub fn between(&mut self, now: Instant, seconds: f64) {
        if let Some(slot) = self.slot(now) {
            count(&mut slot.between, seconds);
        }
    }

    /// Counts generated tokens, of all requests.
    pub fn generated(&mut self, now: Instant, tokens: usize) {
        if let Some(slot) = self.slot(now) {
            slot.generated += tokens as u64;
        }
    }

    /// Rates and percentiles of the window.
    pub fn recent(&mut self, now: Instant) -> Recent {
        let _ = self.slot(now);
        let age = now.saturating_duration_since(self.began);
        // The second that has begun counts as far as it has passed.
        let seconds =
            age.as_secs_f64().min((WINDOW_SECONDS - 1) as f64 + age.as_secs_f64().fract());
        let rate = |sum: u64| sum as f64 / seconds.max(Duration::from_millis(1).as_secs_f64());
        Recent {
            seconds,
            prompt_tokens_per_second: rate(self.slots.iter().map(|slot| slot.prompt).sum()),
            generated_tokens_per_second: rate(self.slots.iter().map(|slot| slot.generated).sum()),
            ttft_ms: spread(self.slots.iter().map(|slot| slot.first.as_slice())),
            itl_ms: spread(self.slots.iter().map(|slot| slot.between.as_slice())),
        }
    }

    /// Slot of the current second. The slots of the seconds since the last call are cleared.
    fn slot(&mut self, now: Instant) -> Option<&mut Slot> {
        let second = now.saturating_duration_since(self.began).as_secs();
        // After a minute without a call, these are all slots.
        let passed = second.saturating_sub(self.now).min(WINDOW_SECONDS as u64);
        for missed in self.now + 1..=self.now + passed {
            if let Some(slot) = self.slots.get_mut((missed % WINDOW_SECONDS as u64) as usize) {
                slot.clear();
            }
        }
        self.now = self.now.max(second);
        self.slots.get_mut((self.now % WINDOW_SECONDS as u64) as usize)
    }
}

fn count(times: &mut [u32], seconds: f64) {
    let bucket = (seconds.max(MIN_SECONDS) / MIN_SECONDS).ln() / BUCKET_RATIO.ln();
    let last = times.len().saturating_sub(1);
    if let Some(count) = times.get_mut((bucket.round() as usize).min(last)) {
        *count = count.saturating_add(1);
    }
}

/// Percentiles of the times in all slots.
fn spread<'a>(slots: impl Iterator<Item = &'a [u32]>) -> Spread {
    let mut times = [0_u64; NUM_BUCKETS];
    for slot in slots {
        times.iter_mut().zip(slot).for_each(|(sum, count)| *sum += u64::from(*count));
    }
    let count: u64 = times.iter().sum();
    let below = |share: f64| {
        let rank = ((share * count as f64).ceil() as u64).max(1);
        let mut seen = 0;
        let bucket = times.iter().position(|times| {
            seen += times;
            seen >= rank
        })?;
        Some(1e3 * MIN_SECONDS * BUCKET_RATIO.powi(bucket as i32))
    };
    Spread { count, p50: below(0.5), p90: below(0.9), p99: below(0.99) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(got: Option<f64>, wanted: f64) {
        let got = got.unwrap();
        assert!((got / wanted - 1.0).abs() < 0.05, "{got} is not near {wanted}");
    }

    #[test]
    fn percentiles_are_those_of_the_times_to_a_twentieth() {
        let start = Instant::now();
        let mut window = Window::new(start);
        for ms in 1..=1000 {
            window.between(start, f64::from(ms) / 1e3);
        }
        let recent = window.recent(start + Duration::from_secs(1));
        assert_eq!(recent.itl_ms.count, 1000);
        near(recent.itl_ms.p50, 500.0);
        near(recent.itl_ms.p90, 900.0);
        near(recent.itl_ms.p99, 990.0);
        assert_eq!(recent.ttft_ms, Spread::default());
    }

    #[test]
    fn a_minute_later_nothing_is_left() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut window = Window::new(start);
        window.first(at(1), 120, 0.5);
        window.generated(at(30), 60);
        let recent = window.recent(at(59));
        assert_eq!((recent.ttft_ms.count, recent.seconds), (1, 59.0));
        assert_eq!(recent.prompt_tokens_per_second, 120.0 / 59.0);
        let recent = window.recent(at(61));
        assert_eq!((recent.ttft_ms.count, recent.prompt_tokens_per_second), (0, 0.0));
        assert_eq!(recent.generated_tokens_per_second, 60.0 / 59.0);
        let recent = window.recent(at(1000));
        assert_eq!(recent, Recent { seconds: 59.0, ..Recent::default() });
    }

    #[test]
    fn times_beyond_all_buckets_count_in_the_last() {
        let start = Instant::now();
        let mut window = Window::new(start);
        window.first(start, 1, 1e9);
        window.first(start, 1, -1.0);
        assert_eq!(window.recent(start).ttft_ms.count, 2);
    }
}
