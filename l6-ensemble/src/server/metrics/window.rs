//! The last minute: how often, and how long half of them, nearly all and the unlucky waited.
//!
//! Each second has its own counts, which are forgotten a minute later. Times go into buckets that are a twentieth wide, so
//! that the memory is always the same, and adding is one increment.

use std::time::{Duration, Instant};

use super::state::{Recent, Spread};

/// Seconds that count.
const SECONDS: usize = 60;

/// The shortest time that is told apart from none, in seconds.
const SHORTEST: f64 = 1e-5;

/// How much longer the times of a bucket are than those of the one below.
const WIDTH: f64 = 1.05;

/// Up to `SHORTEST * WIDTH^(TIMES - 1)`: more than ten minutes.
const TIMES: usize = 384;

/// The last minute.
#[derive(Debug)]
pub struct Window {
    began: Instant,
    /// Second `n` is in slot `n % SECONDS`.
    slots: Vec<Slot>,
    /// The last second that was begun.
    now: u64,
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
    /// It begins now.
    pub fn new(now: Instant) -> Self {
        let slot = Slot { prompt: 0, generated: 0, first: vec![0; TIMES], between: vec![0; TIMES] };
        Self { began: now, slots: vec![slot; SECONDS], now: 0 }
    }

    /// A request's first token came.
    pub fn first(&mut self, now: Instant, prompt_tokens: usize, seconds: f64) {
        if let Some(slot) = self.slot(now) {
            slot.prompt += prompt_tokens as u64;
            count(&mut slot.first, seconds);
        }
    }

    /// Another token came, so long after the one before.
    pub fn between(&mut self, now: Instant, seconds: f64) {
        if let Some(slot) = self.slot(now) {
            count(&mut slot.between, seconds);
        }
    }

    /// So many tokens came, of all requests.
    pub fn generated(&mut self, now: Instant, tokens: usize) {
        if let Some(slot) = self.slot(now) {
            slot.generated += tokens as u64;
        }
    }

    /// What is in it.
    pub fn recent(&mut self, now: Instant) -> Recent {
        let _ = self.slot(now);
        let age = now.saturating_duration_since(self.began);
        // The second that has begun counts as far as it has passed.
        let seconds = age.as_secs_f64().min((SECONDS - 1) as f64 + age.as_secs_f64().fract());
        let rate = |sum: u64| sum as f64 / seconds.max(Duration::from_millis(1).as_secs_f64());
        Recent {
            seconds,
            prompt_tokens_per_second: rate(self.slots.iter().map(|slot| slot.prompt).sum()),
            generated_tokens_per_second: rate(self.slots.iter().map(|slot| slot.generated).sum()),
            ttft_ms: spread(self.slots.iter().map(|slot| slot.first.as_slice())),
            itl_ms: spread(self.slots.iter().map(|slot| slot.between.as_slice())),
        }
    }

    /// This second's slot. What was there a minute ago is forgotten, and what nobody has counted in since.
    fn slot(&mut self, now: Instant) -> Option<&mut Slot> {
        let second = now.saturating_duration_since(self.began).as_secs();
        // After a minute without a word, that is all of them.
        let passed = second.saturating_sub(self.now).min(SECONDS as u64);
        for missed in self.now + 1..=self.now + passed {
            if let Some(slot) = self.slots.get_mut((missed % SECONDS as u64) as usize) {
                slot.clear();
            }
        }
        self.now = self.now.max(second);
        self.slots.get_mut((self.now % SECONDS as u64) as usize)
    }
}

fn count(times: &mut [u32], seconds: f64) {
    let bucket = (seconds.max(SHORTEST) / SHORTEST).ln() / WIDTH.ln();
    let last = times.len().saturating_sub(1);
    if let Some(count) = times.get_mut((bucket.round() as usize).min(last)) {
        *count = count.saturating_add(1);
    }
}

/// Percentiles of what all these count.
fn spread<'a>(slots: impl Iterator<Item = &'a [u32]>) -> Spread {
    let mut times = [0_u64; TIMES];
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
        Some(1e3 * SHORTEST * WIDTH.powi(bucket as i32))
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
