//! Requests that wait for their adapter, counted: they are on their way to the queue.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Engine requests that wait or are to wait, and their prompt tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Waits {
    /// Number of requests.
    pub requests: usize,
    /// Number of their prompt tokens, counted once for each request.
    pub tokens: usize,
}

impl Waits {
    /// No requests.
    pub const NONE: Self = Self { requests: 0, tokens: 0 };
}

/// Requests that wait for their adapter or for its read, by its name: for metrics and for the limits of the queue.
#[derive(Debug, Default)]
pub(super) struct WaitingRequests(Mutex<BTreeMap<String, Waits>>);

/// Requests that are counted, until this is dropped.
pub(super) struct CountedRequests<'a> {
    all: &'a WaitingRequests,
    adapter: &'a str,
    own: Waits,
}

impl WaitingRequests {
    /// Counts requests for an adapter.
    pub fn count<'a>(&'a self, adapter: &'a str, own: Waits) -> CountedRequests<'a> {
        let mut all = self.lock();
        let of = all.entry(adapter.to_owned()).or_default();
        of.requests += own.requests;
        of.tokens += own.tokens;
        CountedRequests { all: self, adapter, own }
    }

    /// Names of their adapters.
    pub fn adapters(&self) -> Vec<String> {
        self.lock().keys().cloned().collect()
    }

    /// Sums over all of them.
    pub fn totals(&self) -> Waits {
        self.lock().values().fold(Waits::NONE, |sum, of| Waits {
            requests: sum.requests + of.requests,
            tokens: sum.tokens + of.tokens,
        })
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Waits>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for CountedRequests<'_> {
    fn drop(&mut self) {
        let mut all = self.all.lock();
        if let Some(of) = all.get_mut(self.adapter) {
            of.requests -= self.own.requests;
            of.tokens -= self.own.tokens;
            if of.requests == 0 {
                all.remove(self.adapter);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_requests_are_counted_by_adapter() {
        let waiting = WaitingRequests::default();
        let waits = |requests, tokens| Waits { requests, tokens };
        let a = waiting.count("a", waits(3, 30));
        let b = waiting.count("b", waits(1, 7));
        let more = waiting.count("a", waits(1, 100));
        let names = |of: &[&str]| of.iter().map(|name| name.to_string()).collect::<Vec<_>>();
        assert_eq!((waiting.totals(), waiting.adapters()), (waits(5, 137), names(&["a", "b"])));
        drop((a, b));
        assert_eq!((waiting.totals(), waiting.adapters()), (waits(1, 100), names(&["a"])));
        drop(more);
        assert_eq!((waiting.totals(), waiting.adapters()), (Waits::NONE, names(&[])));
    }
}
