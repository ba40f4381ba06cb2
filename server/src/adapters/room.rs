//! Requests that wait until there is room for their adapter.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::OwnedMutexGuard;

/// Maximum number of requests that wait for room. Their bodies are in memory meanwhile.
pub(super) const MAX_WAITING_REQUESTS: usize = 256;

/// Interval at which a waiting request looks for room. A request gives its adapter back on the engine's thread, which
/// must not look for those who wait.
pub(super) const ROOM_POLL: Duration = Duration::from_millis(10);

/// The requests that wait, first come, first served.
#[derive(Debug, Default)]
pub(super) struct RoomQueue {
    /// Held by the request that comes next. tokio's mutex is fair.
    pub turn: tokio::sync::Mutex<()>,
    /// Number of waiting requests of each adapter.
    waiting: Mutex<BTreeMap<String, usize>>,
}

/// A request that waits, until this is dropped.
pub(super) struct Waiting<'a> {
    queue: &'a RoomQueue,
    adapter: &'a str,
}

impl RoomQueue {
    /// Adds a request for this adapter. `None`: too many are waiting.
    pub fn enter<'a>(&'a self, adapter: &'a str) -> Option<Waiting<'a>> {
        let mut waiting = self.lock();
        if waiting.values().sum::<usize>() >= MAX_WAITING_REQUESTS {
            return None;
        }
        *waiting.entry(adapter.to_owned()).or_default() += 1;
        Some(Waiting { queue: self, adapter })
    }

    /// Whether no request waits.
    pub fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    /// Names of the adapters that requests wait for.
    pub fn adapters(&self) -> Vec<String> {
        self.lock().keys().cloned().collect()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, usize>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let mut waiting = self.queue.lock();
        if let Some(own) = waiting.get_mut(self.adapter) {
            *own -= 1;
            if *own == 0 {
                waiting.remove(self.adapter);
            }
        }
    }
}

/// Turns of the reads of each name: so that reads of one adapter that does not answer take one seat, and not all.
#[derive(Clone, Debug, Default)]
pub(super) struct NameTurns(Arc<Mutex<HashMap<String, Arc<tokio::sync::Mutex<()>>>>>);

impl NameTurns {
    /// Waits for the turn of a read of this name.
    pub async fn take(&self, name: &str) -> OwnedMutexGuard<()> {
        let turn = {
            let mut turns = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            // Those that nothing reads or waits for.
            turns.retain(|_, turn| Arc::strong_count(turn) > 1);
            turns.entry(name.to_owned()).or_default().clone()
        };
        turn.lock_owned().await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_requests_are_counted_by_adapter_and_bounded() {
        let queue = RoomQueue::default();
        let mut waiting: Vec<_> = (0..MAX_WAITING_REQUESTS)
            .map(|i| queue.enter(["a", "b"][i % 2]).expect("there is room in the queue"))
            .collect();
        assert_eq!(queue.adapters(), ["a", "b"]);
        assert!(queue.enter("c").is_none());
        waiting.pop();
        assert!(queue.enter("c").is_some());
        waiting.clear();
        assert!(queue.is_empty());
    }

    #[tokio::test]
    async fn reads_of_one_name_have_turns_and_others_do_not_wait() {
        let turns = NameTurns::default();
        let first = turns.take("a").await;
        let other = turns.take("b").await;
        let own = turns.clone();
        let second = tokio::spawn(async move { drop(own.take("a").await) });
        tokio::task::yield_now().await;
        assert!(!second.is_finished());
        drop(first);
        second.await.unwrap();
        drop(other);
        drop(turns.take("c").await);
        assert_eq!(turns.0.lock().unwrap().len(), 1, "turns that nothing takes are forgotten");
    }
}
