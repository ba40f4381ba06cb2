//! The quote of a refused request: what it could have expected.

use std::time::Duration;

use l6_ensemble::quote::Quote;
use serde::Serialize;
use utoipa::ToSchema;

/// What a refused request could have expected, in milliseconds from the refusal: an estimate from measured rates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct RefusalQuote {
    /// Begin of the first step.
    pub queue: u64,
    /// First output token.
    pub first_token: u64,
    /// Last output token, for the expected length of the output.
    pub done: u64,
    /// Last output token, for a length that few outputs exceed: with a margin of a tenth, it must be before the
    /// deadline.
    pub done_late: u64,
    /// Last output token if the machine had no other requests, for the expected length of the output. With a deadline
    /// before it, no retry helps.
    pub alone: u64,
}

impl RefusalQuote {
    /// The quote as clients see it; `None` before rates were measured.
    pub fn of(quote: &Quote) -> Option<Self> {
        let Quote { queue, first_token, done, done_late, alone, .. } = *quote;
        quote.measured.then(|| Self {
            queue: ms(queue),
            first_token: ms(first_token),
            done: ms(done),
            done_late: ms(done_late),
            alone: ms(alone),
        })
    }
}

/// Whole milliseconds, within the integers that JSON's readers can hold.
fn ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX).min((1 << 53) - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quote_is_told_only_if_rates_were_measured() {
        let quote = Quote {
            queue: Duration::from_micros(1_900),
            done: Duration::MAX,
            measured: true,
            ..Quote::default()
        };
        let told = RefusalQuote::of(&quote).unwrap();
        assert_eq!((told.queue, told.done), (1, (1 << 53) - 1));
        assert_eq!(RefusalQuote::of(&Quote { measured: false, ..quote }), None);
    }
}
