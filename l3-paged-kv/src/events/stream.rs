//! A numbered stream with replay: one ring of the last items, and a position in it for each reader.
//!
//! There is no queue for each reader, hence nothing that could fill up while its reader is slow, and
//! nothing to give back when a reader goes: publishing costs the same for none and for a thousand.
//! An item that leaves the ring is lost to readers that have not reached it; since items are numbered, a
//! reader knows how many it lost.

use std::collections::VecDeque;
use std::sync::PoisonError;
use std::time::{Duration, Instant};

use super::sync::{Arc, Condvar, Mutex, MutexGuard};

/// Why the next item cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StreamError {
    /// The requested items are no longer kept.
    #[error(
        "batches {from} to {} are lost: the oldest that is kept is {first_available}; clear the index and read on from \
         there",
        first_available - 1
    )]
    Lost {
        /// First missing item.
        from: u64,
        /// Oldest item that is kept.
        first_available: u64,
    },
    /// The requested items are not published yet.
    #[error(
        "batch {asked} was requested, but the next one is {next}: the publisher has restarted and counts from 0; \
         subscribe from 0"
    )]
    Ahead {
        /// Requested item.
        asked: u64,
        /// Next item to be published.
        next: u64,
    },
}

struct Shared<T> {
    state: Mutex<State<T>>,
    /// Signals that an item was published, or that the last publisher was dropped.
    changed: Condvar,
}

struct State<T> {
    /// Items `next - ring.len()..next`.
    ring: VecDeque<T>,
    capacity: usize,
    next: u64,
    publishers: usize,
}

impl<T> Shared<T> {
    /// Locks the state, also after a panic under the lock (in practice, out of memory): no code under the lock leaves
    /// the state half changed.
    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: Clone> State<T> {
    fn oldest(&self) -> u64 {
        self.next - self.ring.len() as u64
    }

    /// Returns the item at a reader's position and advances the position, also past lost items.
    fn read(&self, at: &mut u64) -> Result<Option<T>, StreamError> {
        let oldest = self.oldest();
        if *at < oldest {
            let from = std::mem::replace(at, oldest);
            return Err(StreamError::Lost { from, first_available: oldest });
        }
        let item = self.ring.get((*at - oldest) as usize).cloned();
        *at += u64::from(item.is_some());
        Ok(item)
    }
}

/// The writing end. Clones write to the same stream; it ends with the last of them.
pub(crate) struct Publisher<T> {
    shared: Arc<Shared<T>>,
}

impl<T: Clone> Publisher<T> {
    /// Keeps the last `capacity` items, and at least one.
    pub(crate) fn new(capacity: usize) -> Self {
        let (ring, capacity) = (VecDeque::new(), capacity.max(1));
        let state = State { ring, capacity, next: 0, publishers: 1 };
        Self { shared: Arc::new(Shared { state: Mutex::new(state), changed: Condvar::new() }) }
    }

    /// Appends the item that `make` creates for its number. `make` runs under the lock, so it must be short.
    pub(crate) fn publish(&self, make: impl FnOnce(u64) -> T) {
        let mut state = self.shared.lock();
        let item = make(state.next);
        let full = state.ring.len() == state.capacity;
        let oldest = if full { state.ring.pop_front() } else { None };
        state.ring.push_back(item);
        state.next += 1;
        drop(state);
        self.shared.changed.notify_all();
        // Freeing what it holds takes a while: not under the lock.
        drop(oldest);
    }

    /// Number of the next item to be published.
    pub(crate) fn next(&self) -> u64 {
        self.shared.lock().next
    }

    /// Creates a reader that begins at an item, or at the next one to be published.
    pub(crate) fn subscribe(&self, from: Option<u64>) -> Result<Subscriber<T>, StreamError> {
        let state = self.shared.lock();
        let at = from.unwrap_or(state.next);
        if at < state.oldest() {
            return Err(StreamError::Lost { from: at, first_available: state.oldest() });
        }
        if at > state.next {
            return Err(StreamError::Ahead { asked: at, next: state.next });
        }
        Ok(Subscriber { shared: self.shared.clone(), at })
    }
}

impl<T> Clone for Publisher<T> {
    fn clone(&self) -> Self {
        self.shared.lock().publishers += 1;
        Self { shared: self.shared.clone() }
    }
}

impl<T> Drop for Publisher<T> {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.publishers -= 1;
        let last = state.publishers == 0;
        drop(state);
        if last {
            self.shared.changed.notify_all();
        }
    }
}

/// A reading end.
pub(crate) struct Subscriber<T> {
    shared: Arc<Shared<T>>,
    /// The number of the item to read next.
    at: u64,
}

impl<T: Clone> Subscriber<T> {
    /// The number of the item to read next.
    pub(crate) fn position(&self) -> u64 {
        self.at
    }

    /// Returns the next item, if it is published.
    pub(crate) fn try_recv(&mut self) -> Result<Option<T>, StreamError> {
        self.shared.lock().read(&mut self.at)
    }

    /// Waits for the next item; `None` when the stream has ended.
    pub(crate) fn recv(&mut self) -> Result<Option<T>, StreamError> {
        let mut state = self.shared.lock();
        loop {
            // `wait` releases the lock only when this thread sleeps, so an item that is published between the check and
            // the sleep cannot be missed.
            if let Some(item) = state.read(&mut self.at)? {
                return Ok(Some(item));
            }
            if state.publishers == 0 {
                return Ok(None);
            }
            state = self.shared.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Waits for the next item for at most a given time.
    pub(crate) fn recv_timeout(&mut self, timeout: Duration) -> Result<Option<T>, StreamError> {
        let start = Instant::now();
        let mut state = self.shared.lock();
        loop {
            if let Some(item) = state.read(&mut self.at)? {
                return Ok(Some(item));
            }
            let left = timeout.saturating_sub(start.elapsed());
            if state.publishers == 0 || left.is_zero() {
                return Ok(None);
            }
            let woken = self.shared.changed.wait_timeout(state, left);
            state = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Whether all items were read and the stream has ended.
    pub(crate) fn is_finished(&self) -> bool {
        let state = self.shared.lock();
        state.publishers == 0 && self.at == state.next
    }
}
