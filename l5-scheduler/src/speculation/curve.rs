//! Seconds of a step by its number of rows, as measured.
//!
//! A step has a row for each request and for each draft. What a further row costs differs: next to nothing while the
//! weights are read from memory anyway, much where a kernel begins another tile of rows, and as much as a row once
//! arithmetic is the limit. So the durations are kept by the number of rows, and no formula is fitted to them.
//!
//! A number of rows that was not tried is expected to take little: beyond the next smaller one that was, each row costs
//! what the last one did, and at most a quarter of what a row costs on average there. So it is tried if its drafts are
//! any good, and the guess is replaced by what is measured. This finds the end of a tile, which no formula knows.
//!
//! Steps with prompts are left out: their duration says little about that of a row.

use std::time::Duration;

/// Numbers of rows with a bin of their own; beyond them, eight bins share every doubling.
const SINGLE: usize = 16;

/// Number of bins: up to 65,536 rows.
const BINS: usize = SINGLE + 8 * 12;

/// Factor by which the weight of a bin shrinks with each step; the weight that one step adds, up to a maximum of steps;
/// and the weight below which a bin counts as not measured. So what one step has measured is forgotten after 600 steps
/// that did something else, and tried again.
const DECAY: f64 = 0.998;
const MAX_WEIGHT: f64 = 16.0;
const FORGOTTEN: f64 = 0.3;

/// Maximum duration of a step as a multiple of its bin's: another program may have delayed it.
const MAX_EXCESS: f64 = 2.0;

/// Least and most that a row is expected to cost which was not tried, as shares of the average row of the largest step
/// that was.
const UNTRIED_ROW: [f64; 2] = [0.05, 0.25];

/// Steps of about the same number of rows.
#[derive(Clone, Copy, Debug, Default)]
struct Bin {
    /// Means over its steps.
    rows: f64,
    seconds: f64,
    weight: f64,
}

/// Measured seconds of a step, by its number of rows.
#[derive(Debug)]
pub(super) struct StepCurve {
    bins: [Bin; BINS],
}

impl Default for StepCurve {
    fn default() -> Self {
        Self { bins: [Bin::default(); BINS] }
    }
}

/// Bin of a number of rows.
fn bin_of(rows: usize) -> usize {
    if rows <= SINGLE {
        return rows;
    }
    let doubling = (rows - 1).ilog2() as usize - SINGLE.ilog2() as usize;
    let eighth = (rows - 1 - (SINGLE << doubling)) * 8 / (SINGLE << doubling);
    (1 + SINGLE + 8 * doubling + eighth).min(BINS - 1)
}

impl StepCurve {
    /// Adds a step of `rows` rows that took this long.
    pub(super) fn add(&mut self, rows: usize, took: Duration) {
        self.bins.iter_mut().for_each(|bin| bin.weight *= DECAY);
        let (bin, seconds) = (&mut self.bins[bin_of(rows)], took.as_secs_f64());
        if bin.weight < FORGOTTEN {
            *bin = Bin { rows: rows as f64, seconds, weight: 1.0 };
            return;
        }
        bin.weight = (bin.weight + 1.0).min(MAX_WEIGHT);
        let seconds = seconds.min(MAX_EXCESS * bin.seconds);
        bin.rows += (rows as f64 - bin.rows) / bin.weight;
        bin.seconds += (seconds - bin.seconds) / bin.weight;
    }

    /// Seconds that a step of `rows` rows takes. `None` before the first step.
    pub(super) fn seconds(&self, rows: usize) -> Option<f64> {
        let at = bin_of(rows);
        let measured = |bin: &&Bin| bin.weight >= FORGOTTEN;
        let below = self.bins[..=at].iter().rev().find(measured);
        let above = self.bins[at..].iter().find(measured);
        let x = rows as f64;
        Some(match (below, above) {
            (Some(a), Some(b)) if b.rows > a.rows => {
                let share = ((x - a.rows) / (b.rows - a.rows)).clamp(0.0, 1.0);
                let between = a.seconds + share * (b.seconds - a.seconds);
                between.min(self.beyond(a, x))
            }
            (Some(a), None) => self.beyond(a, x),
            (Some(one), Some(_)) | (None, Some(one)) => one.seconds,
            (None, None) => return None,
        })
    }
}

impl StepCurve {
    /// Expected seconds of a step with more rows than those of a measured bin: each costs what the last ones before
    /// them did, if that is within the limits.
    fn beyond(&self, last: &Bin, rows: f64) -> f64 {
        let measured = |bin: &&Bin| bin.weight >= FORGOTTEN && bin.rows < last.rows;
        let before = self.bins.iter().rev().find(measured);
        let [least, most] = UNTRIED_ROW.map(|share| share * last.seconds / last.rows.max(1.0));
        let row = before.map_or(most, |bin| {
            ((last.seconds - bin.seconds) / (last.rows - bin.rows)).clamp(least, most)
        });
        last.seconds + row * (rows - last.rows).max(0.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(milliseconds: f64) -> Duration {
        Duration::from_secs_f64(milliseconds / 1e3)
    }

    #[track_caller]
    fn near(curve: &StepCurve, rows: usize, want: f64) {
        let got = 1e3 * curve.seconds(rows).unwrap();
        assert!((got / want - 1.0).abs() < 1e-9, "{got} ms of {rows} rows, not {want}");
    }

    #[test]
    fn bins_are_single_at_first_and_then_an_eighth_of_a_doubling() {
        assert!((1..=16).map(bin_of).eq(1..=16));
        assert_eq!([17, 18, 19, 20, 32, 33, 36, 37].map(bin_of), [17, 17, 18, 18, 24, 25, 25, 26]);
        assert!((1..100_000).map(bin_of).is_sorted());
        assert_eq!(bin_of(usize::MAX / 16), BINS - 1);
    }

    #[test]
    fn what_was_not_tried_is_expected_to_take_little_more_than_what_was() {
        let mut curve = StepCurve::default();
        assert_eq!(curve.seconds(3), None);
        curve.add(4, ms(8.0));
        for (rows, want) in [(1, 8.0), (4, 8.0), (5, 8.5), (8, 10.0)] {
            near(&curve, rows, want);
        }
        curve.add(8, ms(20.0));
        for (rows, want) in [(4, 8.0), (5, 8.5), (7, 9.5), (8, 20.0), (16, 25.0)] {
            near(&curve, rows, want);
        }
        curve.add(12, ms(20.8));
        for (rows, want) in [(10, 20.4), (16, 21.6)] {
            near(&curve, rows, want);
        }
    }

    #[test]
    fn one_slow_step_does_little_and_a_lasting_change_is_followed() {
        let mut curve = StepCurve::default();
        (0..50).for_each(|_| curve.add(4, ms(8.0)));
        curve.add(4, ms(800.0));
        assert!(curve.seconds(4).unwrap() < 0.0086);
        (0..60).for_each(|_| curve.add(4, ms(12.0)));
        assert!(curve.seconds(4).unwrap() > 0.0115);
    }

    #[test]
    fn what_was_measured_long_ago_is_forgotten() {
        let mut curve = StepCurve::default();
        curve.add(6, ms(100.0));
        (0..590).for_each(|_| curve.add(4, ms(8.0)));
        near(&curve, 6, 100.0);
        (0..20).for_each(|_| curve.add(4, ms(8.0)));
        assert!(curve.seconds(6).unwrap() < 0.0101);
    }
}
