//! When a refused request should be sent again.

use crate::quote::Quote;

use super::RefusalCode;

/// Maximum of `Retry-After`, in seconds: OpenAI's clients ignore greater values.
pub const MAX_RETRY_AFTER: u32 = 120;

/// Seconds after which a request that the priority floor refused is sent again: when the floor is lowered, no quote
/// says.
const FLOOR_SECONDS: f64 = 15.0;

/// Whole seconds until the condition that refused a request is expected to hold, from 1 to [`MAX_RETRY_AFTER`].
///
/// * `deadline_unreachable`: until the queue has become shorter by the time that the request would be late. If the
///   deadline is too early even for an idle replica, no retry helps, and the maximum is returned. If it would also
///   harm another request, not before that one has ended.
/// * `would_harm`: until the request that would be harmed has ended.
/// * `queue_full`: until a running request ends.
///
/// `due` are the seconds to the deadline, less the margin of the estimate. `jitter` from 0 to 1 adds up to a half: clients
/// that were refused together would all return at once.
pub(super) fn retry_after(code: RefusalCode, quote: &Quote, due: Option<f64>, jitter: f64) -> u32 {
    // exercise l6.retry_after
    let harmed = quote.harms.map_or(0.0, |harm| harm.done.as_secs_f64());
    let seconds = match code {
        RefusalCode::DeadlineUnreachable => match due {
            Some(due) if quote.alone.as_secs_f64() <= due => {
                (quote.done_late.as_secs_f64() - due).max(harmed)
            }
            _ => f64::from(MAX_RETRY_AFTER),
        },
        RefusalCode::WouldHarm => harmed,
        RefusalCode::PriorityFloor => FLOOR_SECONDS,
        RefusalCode::QueueFull => quote.first_seat.as_secs_f64(),
    };
    let spread = 1.0 + 0.5 * if jitter.is_finite() { jitter.clamp(0.0, 1.0) } else { 0.0 };
    (seconds * spread).ceil().clamp(1.0, f64::from(MAX_RETRY_AFTER)) as u32
    // end of exercise
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use l5_scheduler::RequestId;

    use super::*;
    use crate::quote::Harm;

    const MS: fn(u64) -> Duration = Duration::from_millis;

    /// A quote whose times are all different.
    fn quote() -> Quote {
        let harm = Harm { request: RequestId(7), done: MS(6_000), left: MS(5_500) };
        Quote {
            queue: MS(2_000),
            first_token: MS(3_000),
            done: MS(9_000),
            done_late: MS(11_000),
            alone: MS(4_000),
            first_seat: MS(1_400),
            measured: true,
            harms: Some(harm),
            ..Quote::default()
        }
    }

    #[test]
    fn a_late_request_comes_back_when_the_queue_is_shorter_by_what_it_is_late() {
        let (harmless, harmful) = (Quote { harms: None, ..quote() }, quote());
        let late =
            |quote, due| retry_after(RefusalCode::DeadlineUnreachable, quote, Some(due), 0.0);
        assert_eq!(late(&harmless, 8.0), 3);
        assert_eq!(late(&harmless, 4.0), 7, "just enough for an idle replica");
        assert_eq!(late(&harmless, 10.9), 1, "a tenth of a second, rounded up");
        assert_eq!(late(&harmful, 10.9), 6, "it would harm one that ends after 6 s");
        assert_eq!(late(&harmful, 4.0), 7, "which has ended before");
    }

    #[test]
    fn a_deadline_that_not_even_an_idle_replica_meets_has_the_longest_wait() {
        let late = |left| retry_after(RefusalCode::DeadlineUnreachable, &quote(), left, 0.0);
        assert_eq!((late(Some(3.9)), late(Some(-1.0)), late(None)), (120, 120, 120));
    }

    #[test]
    fn a_harmed_request_a_seat_and_the_floor_have_times_of_their_own() {
        let of = |code| retry_after(code, &quote(), Some(8.0), 0.0);
        assert_eq!(of(RefusalCode::WouldHarm), 6, "until the harmed request has ended");
        assert_eq!(of(RefusalCode::QueueFull), 2, "until a seat is free");
        assert_eq!(of(RefusalCode::PriorityFloor), 15);
    }

    #[test]
    fn jitter_adds_up_to_a_half_and_the_result_is_from_1_to_120() {
        let with = |jitter| retry_after(RefusalCode::WouldHarm, &quote(), None, jitter);
        assert_eq!([0.0, 0.5, 1.0, 7.0, -3.0].map(with), [6, 8, 9, 9, 6]);
        assert_eq!([f64::NAN, f64::INFINITY].map(with), [6, 6]);
        let far = Quote { first_seat: Duration::MAX, ..quote() };
        assert_eq!(retry_after(RefusalCode::QueueFull, &far, None, 1.0), MAX_RETRY_AFTER);
        let now = Quote { first_seat: Duration::ZERO, ..quote() };
        assert_eq!(retry_after(RefusalCode::QueueFull, &now, None, 0.0), 1);
    }
}
