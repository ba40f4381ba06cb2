//! A numbered stream with a memory: one ring of the last items, and in it a place for each reader.
//!
//! There is no queue for each reader, hence nothing that could fill up while its reader is slow, and
//! nothing to give back when a reader goes: publishing costs the same for none and for a thousand.
//! What falls out of the ring is lost to those who had not come that far, and since items are numbered,
//! they can say how much that was.

use std::collections::VecDeque;
use std::sync::PoisonError;
use std::time::{Duration, Instant};

use super::sync::{Arc, Condvar, Mutex, MutexGuard};

/// Why the next item cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StreamError {
    /// Older items than are kept.
    #[error(
        "batches {from} to {} are lost: the oldest that is kept is {first_available}; read on from there and take what was known before for out of date",
        first_available - 1
    )]
    Lost {
        /// The first that is missing.
        from: u64,
        /// The oldest there is.
        first_available: u64,
    },
    /// Items that are not published yet.
    #[error(
        "batch {asked} was asked for and the next one will be {next}: the publisher has restarted, and counts from 0"
    )]
    Ahead {
        /// What was asked for.
        asked: u64,
        /// What comes next.
        next: u64,
    },
}

struct Shared<T> {
    state: Mutex<State<T>>,
    /// Something was published, or the last publisher went.
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
    /// No code under the lock leaves the state half changed, so a panic under it (out of memory, in
    /// practice) is no reason to stop everyone else.
    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: Clone> State<T> {
    fn oldest(&self) -> u64 {
        self.next - self.ring.len() as u64
    }

    /// The item at a reader's place; the place moves on, behind a loss as well.
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

    /// Append the item that `make` makes of its number. `make` runs under the lock and is short.
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

    /// The number of the next item.
    pub(crate) fn next(&self) -> u64 {
        self.shared.lock().next
    }

    /// A reader that begins at an item, or at the next one.
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

    /// The next item, if it is there.
    pub(crate) fn try_recv(&mut self) -> Result<Option<T>, StreamError> {
        self.shared.lock().read(&mut self.at)
    }

    /// The next item; `None` when there will be no more.
    pub(crate) fn recv(&mut self) -> Result<Option<T>, StreamError> {
        let mut state = self.shared.lock();
        loop {
            // Looking and going to sleep are one step for everyone else, as `wait` gives up the lock
            // only once it sleeps: what is published in between cannot be missed.
            if let Some(item) = state.read(&mut self.at)? {
                return Ok(Some(item));
            }
            if state.publishers == 0 {
                return Ok(None);
            }
            state = self.shared.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// The next item, if it comes within a time.
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

    /// Whether everything was read and there will be no more.
    pub(crate) fn is_finished(&self) -> bool {
        let state = self.shared.lock();
        state.publishers == 0 && self.at == state.next
    }
}
