//! A pause for a server that answers health checks and fails requests.
//!
//! A replica that fails at once looks idle, so it would get all requests of its lane. After some failures in a row it
//! gets none for a while, and a longer while each time until it has served one.

use std::time::{Duration, Instant};

/// Number of requests in a row that a server may fail.
const MAX_FAILED_REQUESTS: u32 = 3;

/// First pause. Each later one is twice as long.
const FIRST: Duration = Duration::from_secs(5);

/// Maximum pause.
const MAX: Duration = Duration::from_secs(60);

/// What the last requests of a server say about it.
#[derive(Debug, Default)]
pub(super) struct Cooldown {
    /// Requests in a row that it failed, since the last pause.
    failed: u32,
    /// Pauses in a row, without a request that it served.
    pauses: u32,
    until: Option<Instant>,
}

impl Cooldown {
    /// The server has failed a request. Returns how long it pauses, if a pause begins.
    pub fn failed(&mut self, now: Instant) -> Option<Duration> {
        self.failed += 1;
        // After a pause one failure is enough: nothing has become better.
        if self.failed < MAX_FAILED_REQUESTS && self.pauses == 0 || !self.is_over(now) {
            return None;
        }
        let pause = FIRST.saturating_mul(1 << self.pauses.min(8)).min(MAX);
        (self.failed, self.pauses, self.until) = (0, self.pauses + 1, Some(now + pause));
        Some(pause)
    }

    /// The server has served a request.
    pub fn served(&mut self) {
        *self = Self::default();
    }

    /// Whether the server may get requests.
    pub fn is_over(&self, now: Instant) -> bool {
        self.until.is_none_or(|until| now >= until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_pauses_after_failures_in_a_row_and_longer_each_time() {
        let now = Instant::now();
        let at = |seconds| now + Duration::from_secs(seconds);
        let mut cooldown = Cooldown::default();
        assert_eq!([0, 0].map(|second| cooldown.failed(at(second))), [None, None]);
        cooldown.served();
        assert_eq!([1, 1].map(|second| cooldown.failed(at(second))), [None, None], "not in a row");
        assert_eq!(cooldown.failed(at(1)), Some(Duration::from_secs(5)));
        assert_eq!(cooldown.failed(at(2)), None, "a request from before the pause");
        assert!(!cooldown.is_over(at(5)) && cooldown.is_over(at(6)));
        assert_eq!(cooldown.failed(at(7)), Some(Duration::from_secs(10)), "it is no better");
        let mut last = None;
        for hour in 1..100 {
            last = cooldown.failed(at(3600 * hour));
        }
        assert_eq!(last, Some(MAX));
        cooldown.served();
        assert!(cooldown.is_over(at(0)) && cooldown.failed(at(0)).is_none());
    }
}
