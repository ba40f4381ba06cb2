//! Open connections, and which of them is closed when there are too many.
//!
//! The number of connections is limited. Clients that connect and send nothing, or half of a body, could hold all of
//! them until the deadlines of heads and bodies, and `/health` would not respond meanwhile. So when a connection is
//! accepted at the limit, the one that has waited longest for its client's next byte is closed.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tokio::sync::Notify;

/// All open connections. Clones share them.
#[derive(Clone)]
pub(super) struct Connections(Arc<Inner>);

struct Inner {
    began: Instant,
    open: Mutex<Open>,
}

#[derive(Default)]
struct Open {
    next: u64,
    by_number: HashMap<u64, Arc<Idle>>,
}

/// Whether a connection waits for bytes of its client.
struct Idle {
    /// Start of the wait: milliseconds since the server's start, plus 1. 0: the connection does not wait.
    since: AtomicU64,
    close: Notify,
}

/// Registration of one connection, until it is dropped.
pub(super) struct Registered {
    connections: Connections,
    number: u64,
    idle: Arc<Idle>,
}

/// Upload of a request body, which may wait for bytes of the client: an extension of every request.
#[derive(Clone)]
pub struct Upload {
    connections: Connections,
    idle: Arc<Idle>,
}

impl Default for Connections {
    fn default() -> Self {
        Self(Arc::new(Inner { began: Instant::now(), open: Mutex::default() }))
    }
}

impl Connections {
    fn lock(&self) -> MutexGuard<'_, Open> {
        self.0.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> u64 {
        u64::try_from(self.0.began.elapsed().as_millis()).unwrap_or(u64::MAX - 1) + 1
    }

    /// Registers a connection, which waits for its first request.
    pub fn enter(&self) -> Registered {
        let idle = Arc::new(Idle { since: AtomicU64::new(self.now()), close: Notify::new() });
        let mut open = self.lock();
        open.next += 1;
        let number = open.next;
        open.by_number.insert(number, idle.clone());
        drop(open);
        Registered { connections: self.clone(), number, idle }
    }

    /// Closes the connection that has waited longest for its client, if any waits.
    pub fn close_longest_waiting(&self) {
        // Visits all connections, at most once for each connection that is accepted.
        let open = self.lock();
        let waiting =
            open.by_number.values().map(|idle| (idle.since.load(Ordering::Relaxed), idle));
        let longest = waiting.filter(|(since, _)| *since > 0).min_by_key(|(since, _)| *since);
        if let Some((_, idle)) = longest {
            // A connection is chosen once.
            idle.since.store(0, Ordering::Relaxed);
            idle.close.notify_one();
        }
    }
}

impl Registered {
    /// Waits until the connection is to be closed.
    pub async fn closed(&self) {
        self.idle.close.notified().await;
    }

    /// Ends the wait: the head of a request has arrived.
    pub fn serve(&self) -> Upload {
        self.idle.since.store(0, Ordering::Relaxed);
        Upload { connections: self.connections.clone(), idle: self.idle.clone() }
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        self.connections.lock().by_number.remove(&self.number);
    }
}

impl Upload {
    /// Begins to wait for bytes of the client.
    pub fn wait(&self) {
        self.idle.since.store(self.connections.now(), Ordering::Relaxed);
    }

    /// Ends the wait: the body has arrived.
    pub fn done(&self) {
        self.idle.since.store(0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_one_that_waits_longest_is_closed_and_none_that_is_served() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            let connections = Connections::default();
            let all: Vec<_> = (0..4).map(|_| connections.enter()).collect();
            let times = [30, 20, 10, 40];
            for (one, since) in all.iter().zip(times) {
                one.idle.since.store(since, Ordering::Relaxed);
            }
            drop(all[2].serve());
            for expected in [1, 0, 3] {
                connections.close_longest_waiting();
                // Each is closed once, and no other.
                all[expected].closed().await;
            }
            connections.close_longest_waiting();
            let upload = all[2].serve();
            upload.wait();
            connections.close_longest_waiting();
            all[2].closed().await;
            drop(all);
            assert!(connections.lock().by_number.is_empty());
        });
    }
}
