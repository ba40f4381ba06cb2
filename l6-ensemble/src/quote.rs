//! Quotes: what a request can expect, estimated before it is admitted.

mod arrivals;
mod calibration;
mod forecast;
mod in_flight;
mod machine;
mod output_lengths;
mod overtaking;
#[cfg(test)]
mod tests;
mod work;

use std::time::Duration;

use l5_scheduler::RequestId;

pub use calibration::{Accuracy, CalibrationReport, GRAIN_SECONDS, QuoteCalibration, Served};
pub(crate) use calibration::{Compared, compare};
pub(crate) use forecast::Forecast;
pub use in_flight::{Admitted, InFlight};
pub use output_lengths::OutputLengths;
pub use work::LaneWork;

/// Quantile of the output lengths for which a deadline must be met.
const LATE_QUANTILE: f64 = 0.95;

/// Tokens of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RequestSize {
    /// Number of prompt tokens.
    pub prompt_tokens: usize,
    /// Number of prompt tokens that are probably in the replica's prefix cache: an estimate, 0 if nothing is known.
    pub cached_tokens: usize,
    /// Maximum number of output tokens.
    pub max_tokens: usize,
    /// Number of output tokens, if the caller knows it, as for a request that ignores end-of-sequence tokens. `None`:
    /// what the lane has learned ([`OutputLengths`]).
    pub expected_output_tokens: Option<f64>,
}

impl RequestSize {
    /// Expected number of output tokens.
    pub(crate) fn expected(&self, lengths: &OutputLengths) -> f64 {
        let expected = self.expected_output_tokens;
        expected.unwrap_or_else(|| lengths.expected(self.max_tokens)).max(1.0)
    }

    /// Number of output tokens that few requests exceed.
    fn late(&self, lengths: &OutputLengths) -> f64 {
        let late = || lengths.quantile(self.max_tokens, LATE_QUANTILE);
        self.expected_output_tokens.unwrap_or_else(late).max(1.0)
    }
}

/// A request in flight to which a promise would be broken if another one were admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Harm {
    /// The request in flight.
    pub request: RequestId,
    /// Time from now at which it would have what was promised: its last token, if that is its deadline, or its first.
    pub done: Duration,
    /// Time from now for which it was promised.
    pub left: Duration,
}

/// What a request can expect from a replica, as times from now. A quote is only made of a request that fits the context
/// and the pool.
///
/// The estimate runs the schedulers of all lanes of the machine at the measured rates, and supposes that as many
/// requests will arrive as came recently. It does not know the future: when the traffic changes, quotes are wrong until
/// the rates have followed.
///
/// `done` is for the expected output. How long the output is, the client's prompt decides and not the server; so when
/// the request has ended with `n` tokens, the promise to compare with is [`Quote::done_after`] of `n`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Quote {
    /// Begin of its first step.
    pub queue: Duration,
    /// First output token.
    pub first_token: Duration,
    /// First output token if no later request of its class overtakes it, and if as many do as the door lets.
    pub first_token_range: [Duration; 2],
    /// Last output token, for the expected number of output tokens.
    pub done: Duration,
    /// Last output token, for a number of output tokens that few requests exceed, if no later request of its class
    /// overtakes it. Deadlines are checked against it: the door lets others overtake it no further than its deadline.
    pub done_late: Duration,
    /// Mean time between two output tokens.
    pub per_token: Duration,
    /// Last output token if the replica were idle.
    pub alone: Duration,
    /// Time until a running request is expected to end.
    pub first_seat: Duration,
    /// Number of requests that are in flight on the machine.
    pub beside: usize,
    /// Whether the rates were measured, in this lane or another one of the machine. Before that a quote promises
    /// nothing.
    pub measured: bool,
    /// A request in flight to which a promise would be broken.
    pub harms: Option<Harm>,
}

impl Quote {
    /// Last output token of a request that has `output_tokens` of them.
    pub fn done_after(&self, output_tokens: usize) -> Duration {
        // exercise l6.quote
        let others = u32::try_from(output_tokens.saturating_sub(1)).unwrap_or(u32::MAX);
        self.first_token.saturating_add(self.per_token.saturating_mul(others))
        // end of exercise
    }
}

/// Whether a request with `left` seconds to its deadline is made late: its end is in time `before`, and is not `after`.
/// A request that is late anyway is not harmed.
pub(crate) fn is_harmed(left: f64, [before, after]: [f64; 2], margin: f64) -> bool {
    // exercise l6.harm
    // A difference that is only rounding is none.
    before <= left && after > before * (1.0 + 1e-9) && after * (1.0 + margin) > left
    // end of exercise
}

/// A duration of so many seconds; 0 if negative, and the maximum if there is no such duration.
fn duration(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or(Duration::MAX)
}
