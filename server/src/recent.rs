//! The last requests of an ensemble: which specialist served each, and why. Nothing of what they contain is kept.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::Serialize;

/// Number of requests that are kept.
pub const MAX_RECENT: usize = 50;

/// A request that has ended. Times are in milliseconds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RecentRequest {
    /// Its arrival, in UTC.
    pub time: String,
    /// Its id, as in the access log.
    pub request_id: String,
    /// Name of the specialist.
    pub specialist: String,
    /// Why it was routed there, as in `x-strata-route`.
    pub why: String,
    /// Status code of the response; 499 if the client disconnected before it.
    pub status: u16,
    /// Time from the head of the request to the end of the response.
    pub ms: f64,
    /// Time from the head of the request to the first token.
    pub ttft_ms: Option<f64>,
    /// Number of completion tokens.
    pub completion_tokens: usize,
}

/// The last [`MAX_RECENT`] requests.
#[derive(Debug, Default)]
pub struct RecentRequests(Mutex<VecDeque<RecentRequest>>);

impl RecentRequests {
    fn lock(&self) -> MutexGuard<'_, VecDeque<RecentRequest>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a request, and forgets the oldest one if there are too many.
    pub fn add(&self, request: RecentRequest) {
        let mut all = self.lock();
        all.truncate(MAX_RECENT - 1);
        all.push_front(request);
    }

    /// All of them, the latest first.
    pub fn all(&self) -> Vec<RecentRequest> {
        self.lock().iter().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_requests_are_kept_and_the_oldest_forgotten() {
        let recent = RecentRequests::default();
        let request = |n: usize| RecentRequest {
            time: String::new(),
            request_id: n.to_string(),
            specialist: "stl".to_owned(),
            why: "rule".to_owned(),
            status: 200,
            ms: 1.0,
            ttft_ms: None,
            completion_tokens: n,
        };
        assert_eq!(recent.all(), []);
        (0..MAX_RECENT + 3).for_each(|n| recent.add(request(n)));
        let tokens: Vec<usize> = recent.all().iter().map(|one| one.completion_tokens).collect();
        assert_eq!(tokens, (3..MAX_RECENT + 3).rev().collect::<Vec<_>>());
    }
}
