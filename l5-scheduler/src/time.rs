//! Moments, as the caller's clock has them.

use std::cmp::Ordering;
use std::ops::{Add, Sub};

/// A moment: seconds since whenever the caller's clock began. The scheduler never asks what time it is; it is told, so
/// that a simulator can run it under a clock of its own.
#[derive(Clone, Copy, Debug, Default)]
pub struct Time(pub f64);

impl Time {
    /// When the clock began.
    pub const ZERO: Time = Time(0.0);

    /// Seconds since the clock began.
    pub fn seconds(self) -> f64 {
        self.0
    }
}

impl Ord for Time {
    /// Every moment has its place, so that it can be a key: NaN comes last.
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

    /// So many seconds later.
    fn add(self, seconds: f64) -> Time {
        Time(self.0 + seconds)
    }
}

impl Sub for Time {
    type Output = f64;

    /// Seconds between two moments.
    fn sub(self, earlier: Time) -> f64 {
        self.0 - earlier.0
    }
}
