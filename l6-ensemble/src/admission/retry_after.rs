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
///   deadline is too early even for an idle replica, no retry helps, and the maximum is returned.
/// * `would_harm`: until the request that would be harmed has ended.
/// * `queue_full`: until a running request ends.
///
/// `jitter` from 0 to 1 adds up to a half: clients that were refused together would all return at once.
pub(super) fn retry_after(code: RefusalCode, quote: &Quote, left: Option<f64>, jitter: f64) -> u32 {
    let seconds = match code {
        RefusalCode::DeadlineUnreachable => match left {
            Some(left) if quote.alone.as_secs_f64() <= left => quote.done_late.as_secs_f64() - left,
            _ => f64::from(MAX_RETRY_AFTER),
        },
        RefusalCode::WouldHarm => quote.harms.map_or(1.0, |harm| harm.done.as_secs_f64()),
        RefusalCode::PriorityFloor => FLOOR_SECONDS,
        RefusalCode::QueueFull => quote.first_seat.as_secs_f64(),
    };
    let spread = 1.0 + 0.5 * if jitter.is_finite() { jitter.clamp(0.0, 1.0) } else { 0.0 };
    (seconds * spread).ceil().clamp(1.0, f64::from(MAX_RETRY_AFTER)) as u32
}
