//! Time, as the caller's clock has it.

use std::cmp::Ordering;
use std::ops::{Add, Sub};

/// Seconds since the caller's clock began. The scheduler never reads a clock: the time is an argument, so that a
/// simulator can use a virtual clock.
#[derive(Clone, Copy, Debug, Default)]
pub struct Time(pub f64);

impl Time {
    /// Time at which the clock began.
    pub const ZERO: Time = Time(0.0);

    /// Seconds since the clock began.
    pub fn seconds(self) -> f64 {
        self.0
    }
}

impl Ord for Time {
    /// Total order, so that times can be keys: NaN comes last.
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.total_cmp(&other.0)
    }
}

impl PartialOrd for Time {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Time {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Time {}

impl Add<f64> for Time {
    type Output = Time;

    /// Adds seconds.
    fn add(self, seconds: f64) -> Time {
        Time(self.0 + seconds)
    }
}

impl Sub for Time {
    type Output = f64;

    /// Seconds from `earlier` to this time.
    fn sub(self, earlier: Time) -> f64 {
        self.0 - earlier.0
    }
}
