//! Requests whose keys and values come from outside the pool.

use super::Scheduler;

/// Numbers of waiting requests whose keys and values come from outside the pool, by how far that is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KvFetches {
    /// The connector does not know yet what there is to load.
    pub waiting_to_start: usize,
    /// Keys and values are being loaded.
    pub in_progress: usize,
    /// They have arrived, and the request waits for a seat.
    pub completed_waiting: usize,
}

impl KvFetches {
    /// Number of all of them.
    pub fn total(&self) -> usize {
        self.waiting_to_start + self.in_progress + self.completed_waiting
    }
}

impl Scheduler {
    /// Requests whose keys and values come from outside the pool, as the last plan left them.
    pub fn kv_fetches(&self) -> KvFetches {
        KvFetches {
            waiting_to_start: self.lookups.len(),
            in_progress: self.loading.len(),
            completed_waiting: self.arrived.len(),
        }
    }
}
