//! Pass rate of the verdicts in a window, in constant memory.

use std::time::Duration;

use l5_scheduler::Time;

/// Number of slots of a window: a verdict leaves it up to one sixtieth of the window early.
pub(super) const SLOTS: u64 = 60;

/// Counts of the verdicts of a window, in a ring of slots.
#[derive(Clone, Debug)]
pub(super) struct Recent {
    /// Seconds of a slot.
    width: f64,
    /// Time of the latest verdict.
    latest: Time,
    slots: [Slot; SLOTS as usize],
    /// Sum of the slots that are in the window at `latest`.
    passed: u64,
    total: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    number: u64,
    passed: u64,
    total: u64,
}

impl Recent {
    pub(super) fn new(window: Duration) -> Self {
        let width = (window.as_secs_f64() / SLOTS as f64).max(f64::MIN_POSITIVE);
        Self {
            width,
            latest: Time::ZERO,
            slots: [Slot::default(); SLOTS as usize],
            passed: 0,
            total: 0,
        }
    }

    /// Counts a verdict, and returns the time at which it counts: the clock never goes back.
    pub(super) fn count(&mut self, pass: bool, now: Time) -> Time {
        if now.seconds().is_finite() {
            self.latest = self.latest.max(now);
        }
        self.expire();
        let number = self.number(self.latest);
        let slot = &mut self.slots[(number % SLOTS) as usize];
        slot.number = number;
        slot.passed += u64::from(pass);
        slot.total += 1;
        self.passed += u64::from(pass);
        self.total += 1;
        self.latest
    }

    /// Pass rate at the latest verdict, if there are enough verdicts.
    pub(super) fn rate(&self, min_samples: u64) -> Option<f64> {
        (self.total >= min_samples.max(1)).then(|| self.passed as f64 / self.total as f64)
    }

    /// Pass rate and number of verdicts at a time.
    pub(super) fn at(&self, now: Time) -> (Option<f64>, u64) {
        let mut then = self.clone();
        if now.seconds().is_finite() {
            then.latest = then.latest.max(now);
        }
        then.expire();
        (then.rate(1), then.total)
    }

    /// The same verdicts in another window. Those of a slot count at its begin, so they leave the window up to one slot
    /// of the old window early.
    pub(super) fn with_window(&self, window: Duration) -> Self {
        let mut new = Self { latest: self.latest, ..Self::new(window) };
        let now = new.number(new.latest);
        for old in self.slots.iter().filter(|slot| slot.total > 0) {
            let number = new.number(Time(old.number as f64 * self.width));
            if now.saturating_sub(number) >= SLOTS {
                continue;
            }
            let slot = &mut new.slots[(number % SLOTS) as usize];
            slot.number = number;
            slot.passed += old.passed;
            slot.total += old.total;
            new.passed += old.passed;
            new.total += old.total;
        }
        new
    }

    pub(super) fn clear(&mut self) {
        self.slots.fill(Slot::default());
        (self.passed, self.total) = (0, 0);
    }

    /// Removes the slots that have left the window.
    fn expire(&mut self) {
        let now = self.number(self.latest);
        for slot in &mut self.slots {
            if slot.total > 0 && now - slot.number >= SLOTS {
                self.passed -= slot.passed;
                self.total -= slot.total;
                *slot = Slot::default();
            }
        }
    }

    /// Number of the slot of a time.
    fn number(&self, at: Time) -> u64 {
        (at.seconds() / self.width) as u64
    }
}
