//! Jobs that may never come back: a list of bounded size.

use std::collections::BTreeMap;

use crate::JobKey;

/// Maximum number of jobs without unfinished requests that are remembered.
pub(crate) const MAX_IDLE_JOBS: usize = 4096;

/// Maximum number of bytes of their keys. (A job id is the client's choice.)
pub(crate) const MAX_IDLE_BYTES: usize = 1 << 20;

/// Jobs without unfinished requests, the one first that has been idle longest.
#[derive(Debug, Default)]
pub(crate) struct IdleJobs {
    by_number: BTreeMap<u64, JobKey>,
    bytes: usize,
    next: u64,
}

impl IdleJobs {
    /// Adds a job. Returns its number.
    pub(crate) fn add(&mut self, key: &JobKey) -> u64 {
        let number = self.next;
        self.next += 1;
        self.bytes += bytes(key);
        self.by_number.insert(number, key.clone());
        number
    }

    /// Removes a job that is not idle any more.
    pub(crate) fn remove(&mut self, number: u64) {
        if let Some(key) = self.by_number.remove(&number) {
            self.bytes -= bytes(&key);
        }
    }

    /// Removes the job that has been idle longest, if there are too many.
    pub(crate) fn pop_surplus(&mut self) -> Option<JobKey> {
        if self.by_number.len() <= MAX_IDLE_JOBS && self.bytes <= MAX_IDLE_BYTES {
            return None;
        }
        let (_, key) = self.by_number.pop_first()?;
        self.bytes -= bytes(&key);
        Some(key)
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.by_number.len()
    }

    /// Whether the number of bytes is that of the keys.
    #[cfg(test)]
    pub(crate) fn adds_up(&self) -> bool {
        self.bytes == self.by_number.values().map(bytes).sum::<usize>()
    }
}

fn bytes(key: &JobKey) -> usize {
    key.id.len() + key.tenant.as_ref().map_or(0, String::len)
}
