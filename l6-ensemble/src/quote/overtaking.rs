//! How far later requests delay those that they overtake.
//!
//! A forecast knows two bounds of a wait: nothing overtakes the request, or others do as far as the door lets them
//! ([`Quote::first_token_range`](super::Quote::first_token_range)). Where the truth is between the two depends on the
//! traffic, and the lane measures it: over the requests that have had their first token, it fits
//!
//! ```text
//! actual = earliest + fraction * (latest - earliest)
//! ```
//!
//! by least squares, in which older requests count less.

use std::time::Duration;

/// Factor by which the weight of a request shrinks with each later one: about the last 50 requests count.
const DECAY: f64 = 0.98;

/// Fraction before any request was measured, and its weight in seconds squared.
const PRIOR: (f64, f64) = (0.5, 1.0);

/// The fraction, as a regression.
#[derive(Clone, Debug, Default)]
pub(crate) struct Overtaking {
    /// Sums of the squares of the ranges, and of ranges times delays.
    squares: f64,
    products: f64,
}

impl Overtaking {
    /// Notes that a request had its first token after `actual` seconds.
    pub(crate) fn add(&mut self, range: [Duration; 2], actual: f64) {
        let [earliest, latest] = range.map(|time| time.as_secs_f64());
        let (range, delay) = (latest - earliest, actual - earliest);
        if range > 0.0 && range.is_finite() && delay.is_finite() {
            self.squares = DECAY * self.squares + range * range;
            self.products = DECAY * self.products + range * delay;
        }
    }

    /// The fraction, from 0 to 1.
    pub(crate) fn fraction(&self) -> f64 {
        let (fraction, weight) = PRIOR;
        ((self.products + fraction * weight) / (self.squares + weight)).clamp(0.0, 1.0)
    }
}
