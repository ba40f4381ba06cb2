//! How good quotes are: what was promised against what happened.

use std::collections::VecDeque;
use std::time::Duration;

use l5_scheduler::Time;
use serde::Serialize;

use super::Quote;

/// Fraction of the promise by which a quote is wrong.
const TOLERANCE: f64 = 0.25;

/// Seconds by which a quote is wrong at least. A request that arrives while a step runs waits for the end of that step,
/// and a step has no smaller parts, so a quarter of a few milliseconds says nothing about the estimate. A tenth of a
/// second is about what a person notices (Nielsen 1993, "Usability Engineering"), and a tenth of the least
/// `Retry-After`.
pub const GRAIN_SECONDS: f64 = 0.1;

/// A quoted and an actual time in seconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Compared {
    pub quoted: f64,
    pub actual: f64,
}

impl Compared {
    fn ratio(self) -> f64 {
        self.actual / self.quoted.max(1e-9)
    }

    /// Whether the quote is wrong: by more than 25% of the quoted time, and by more than [`GRAIN_SECONDS`].
    fn is_wrong(self) -> bool {
        let error = (self.actual - self.quoted).abs();
        // A rounding is no error.
        error > TOLERANCE * self.quoted + 1e-9 && error > GRAIN_SECONDS + 1e-9
    }
}

/// Maximum number of requests in a window. When more end within it, the oldest are left out.
const MAX_REQUESTS: usize = 4096;

/// How a request was served, as times from its admission.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Served {
    /// First output token.
    pub first_token: Duration,
    /// Last output token.
    pub done: Duration,
    /// Number of output tokens.
    pub output_tokens: usize,
}

/// Accuracy of the quotes of a window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Accuracy {
    /// Number of quotes.
    pub count: u64,
    /// Number of quotes that were wrong by more than 25% of the quoted time, in either direction, and by more than
    /// [`GRAIN_SECONDS`].
    pub wrong: u64,
    /// Number of those of which the request was later than quoted.
    pub late: u64,
    /// Mean of actual over quoted time; 0 without quotes. Above 1, quotes are too optimistic.
    pub mean_ratio: f64,
}

impl Accuracy {
    /// Fraction of quotes that were wrong by more than 25%; 0 without quotes.
    pub fn wrong_fraction(&self) -> f64 {
        if self.count > 0 { self.wrong as f64 / self.count as f64 } else { 0.0 }
    }

    /// Adds a quote.
    pub(crate) fn add(&mut self, compared: Compared) {
        // exercise l6.quote
        let is_wrong = compared.is_wrong();
        self.count += 1;
        self.wrong += u64::from(is_wrong);
        self.late += u64::from(is_wrong && compared.actual > compared.quoted);
        self.mean_ratio += (compared.ratio() - self.mean_ratio) / self.count as f64;
        // end of exercise
    }

    fn of(all: impl Iterator<Item = Compared>) -> Self {
        let mut accuracy = Self::default();
        all.for_each(|compared| accuracy.add(compared));
        accuracy
    }
}

/// Accuracy of quotes, for a server's metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CalibrationReport {
    /// Quotes of the first output token, in the window.
    pub first_token: Accuracy,
    /// Quotes of the last output token, in the window. The promise is that for the number of output tokens that the
    /// request turned out to have: [`Quote::done_after`].
    pub done: Accuracy,
    /// Quotes of the last output token for the expected number of output tokens: also how well lengths are known.
    pub done_as_expected: Accuracy,
    /// Number of quotes that were compared since the start.
    pub total: u64,
    /// Number of those that were wrong by more than 25%: first token, and last token.
    pub total_wrong: [u64; 2],
}

/// Compares the quotes of requests with how they were served, over a window of time.
///
/// # Example
///
/// ```
/// use std::time::Duration;
///
/// use l5_scheduler::Time;
/// use l6_ensemble::quote::{Quote, QuoteCalibration, Served};
///
/// let seconds = Duration::from_secs;
/// let mut calibration = QuoteCalibration::new(60.0);
/// let quote = Quote { first_token: seconds(2), done: seconds(2), measured: true, ..Quote::default() };
/// for first_token in [2, 4] {
///     let served = Served { first_token: seconds(first_token), done: seconds(4), output_tokens: 1 };
///     calibration.record(&quote, &served, Time(10.0));
/// }
/// let first_token = calibration.report(Time(20.0)).first_token;
/// assert_eq!((first_token.count, first_token.wrong_fraction()), (2, 0.5));
/// assert_eq!(calibration.report(Time(99.0)).first_token.count, 0, "the window is over");
/// ```
#[derive(Clone, Debug)]
pub struct QuoteCalibration {
    window: f64,
    /// End of each request, and its times: first token, last token, last token as expected.
    compared: VecDeque<(Time, [Compared; 3])>,
    total: u64,
    total_wrong: [u64; 2],
}

impl QuoteCalibration {
    /// Creates a calibration over a window of so many seconds. It keeps a bounded number of requests.
    pub fn new(window: f64) -> Self {
        Self { window, compared: VecDeque::new(), total: 0, total_wrong: [0; 2] }
    }

    /// Notes how a request was served that had this quote and has ended at `now`. A quote without measured rates
    /// promised nothing, and is not counted.
    pub fn record(&mut self, quote: &Quote, served: &Served, now: Time) {
        if !quote.measured {
            return;
        }
        let all = compare(quote, served);
        self.total += 1;
        for (wrong, compared) in self.total_wrong.iter_mut().zip(all) {
            *wrong += u64::from(compared.is_wrong());
        }
        self.forget(now);
        if self.compared.len() == MAX_REQUESTS {
            self.compared.pop_front();
        }
        self.compared.push_back((now, all));
    }

    /// Accuracy of the window that ends at `now`.
    pub fn report(&mut self, now: Time) -> CalibrationReport {
        self.forget(now);
        let [first_token, done, done_as_expected] =
            [0, 1, 2].map(|i| Accuracy::of(self.compared.iter().map(|(_, all)| all[i])));
        let Self { total, total_wrong, .. } = *self;
        CalibrationReport { first_token, done, done_as_expected, total, total_wrong }
    }

    fn forget(&mut self, now: Time) {
        while self.compared.front().is_some_and(|(ended, _)| now - *ended > self.window) {
            self.compared.pop_front();
        }
    }
}

/// Quoted and actual times: first token, last token, and last token as expected.
pub(crate) fn compare(quote: &Quote, served: &Served) -> [Compared; 3] {
    // exercise l6.quote
    let compared = |actual: Duration, quoted: Duration| Compared {
        quoted: quoted.as_secs_f64(),
        actual: actual.as_secs_f64(),
    };
    [
        compared(served.first_token, quote.first_token),
        compared(served.done, quote.done_after(served.output_tokens)),
        compared(served.done, quote.done),
    ]
    // end of exercise
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: fn(u64) -> Duration = Duration::from_millis;

    fn quote(first_token: u64, per_token: u64, done: u64) -> Quote {
        let (first_token, done, per_token) = (MS(first_token), MS(done), MS(per_token));
        Quote { first_token, done, per_token, measured: true, ..Quote::default() }
    }

    #[test]
    fn a_quarter_is_right_and_more_is_wrong_in_both_directions() {
        let mut calibration = QuoteCalibration::new(1e9);
        for first in [750, 1250, 1251, 749] {
            let served = Served { first_token: MS(first), done: MS(first), output_tokens: 1 };
            calibration.record(&quote(1000, 0, 1000), &served, Time::ZERO);
        }
        let Accuracy { count, wrong, late, mean_ratio } =
            calibration.report(Time::ZERO).first_token;
        assert_eq!((count, wrong, late), (4, 2, 1));
        assert!((mean_ratio - 1.0).abs() < 1e-9);
    }

    #[test]
    fn a_quote_that_was_too_long_is_wrong_and_not_late() {
        let mut all = Accuracy::default();
        for actual in [5.0, 6.0, 20.0, 11.0] {
            all.add(Compared { quoted: 10.0, actual });
        }
        assert_eq!((all.count, all.wrong, all.late), (4, 3, 1));
        assert!((all.mean_ratio - 1.05).abs() < 1e-9, "{}", all.mean_ratio);
    }

    #[test]
    fn an_error_of_less_than_a_tenth_of_a_second_is_none() {
        let mut calibration = QuoteCalibration::new(1e9);
        for first in [10, 150, 151] {
            let served = Served { first_token: MS(first), done: MS(first), output_tokens: 1 };
            calibration.record(&quote(50, 0, 50), &served, Time::ZERO);
        }
        assert_eq!(calibration.report(Time::ZERO).first_token.wrong, 1);
    }

    #[test]
    fn the_end_is_compared_with_the_promise_for_the_output_that_came() {
        let mut calibration = QuoteCalibration::new(1e9);
        // Quoted for 101 tokens; 11 came, in the time that 11 take.
        let served = Served { first_token: MS(500), done: MS(600), output_tokens: 11 };
        calibration.record(&quote(500, 10, 1500), &served, Time::ZERO);
        let report = calibration.report(Time::ZERO);
        assert_eq!((report.done.wrong, report.done_as_expected.wrong), (0, 1));
        assert_eq!((report.total, report.total_wrong), (1, [0, 0]));
    }

    #[test]
    fn a_window_forgets_and_is_bounded_and_the_totals_are_not() {
        let mut calibration = QuoteCalibration::new(10.0);
        let served = Served { first_token: MS(900), done: MS(900), output_tokens: 1 };
        for second in 0..100 {
            calibration.record(&quote(1, 1, 1), &served, Time(f64::from(second)));
        }
        let report = calibration.report(Time(99.0));
        assert_eq!(
            (report.first_token.count, report.total, report.total_wrong),
            (11, 100, [100; 2])
        );
        for _ in 0..2 * MAX_REQUESTS {
            calibration.record(&quote(1, 1, 1), &served, Time(99.0));
        }
        assert_eq!(calibration.report(Time(99.0)).done.count, MAX_REQUESTS as u64);
        let unmeasured = Quote { measured: false, ..quote(1, 1, 1) };
        calibration.record(&unmeasured, &served, Time(99.0));
        assert_eq!(calibration.report(Time(99.0)).total, 100 + 2 * MAX_REQUESTS as u64);
    }
}
