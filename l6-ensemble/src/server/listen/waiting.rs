//! Connections whose clients are to send something, and which of them is closed when there are too many.
//!
//! There are only so many connections. Clients that connect and send nothing, or half of a body, could hold all of them
//! for as long as the deadlines of heads and bodies are, and `/health` would not answer meanwhile. So when a connection
//! comes and none is free, the one that has waited longest for its client's next byte is closed.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tokio::sync::Notify;

/// All connections.
#[derive(Clone)]
pub(super) struct Connections(Arc<Inner>);

struct Inner {
    began: Instant,
    open: Mutex<Open>,
}

#[derive(Default)]
struct Open {
    next: u64,
    by_number: HashMap<u64, Arc<Turn>>,
}

/// Whether a connection waits for its client.
struct Turn {
    /// Milliseconds since the beginning, and 1: since then nothing came. 0: it is the server's turn.
    since: AtomicU64,
    close: Notify,
}

/// One connection. Dropped, it is none any more.
pub(super) struct Registered {
    connections: Connections,
    number: u64,
    turn: Arc<Turn>,
}

/// The body of a request, whose bytes are waited for: an extension of every request.
#[derive(Clone)]
pub struct Upload {
    connections: Connections,
    turn: Arc<Turn>,
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

    /// Another one, whose client is to send a head.
    pub fn enter(&self) -> Registered {
        let turn = Arc::new(Turn { since: AtomicU64::new(self.now()), close: Notify::new() });
        let mut open = self.lock();
        open.next += 1;
        let number = open.next;
        open.by_number.insert(number, turn.clone());
        drop(open);
        Registered { connections: self.clone(), number, turn }
    }

    /// Close the connection that has waited longest for its client. None waits where all have something to do.
    pub fn close_longest_waiting(&self) {
        // A walk over all of them, at most once for each connection that comes.
        let open = self.lock();
        let waiting =
            open.by_number.values().map(|turn| (turn.since.load(Ordering::Relaxed), turn));
        let longest = waiting.filter(|(since, _)| *since > 0).min_by_key(|(since, _)| *since);
        if let Some((_, turn)) = longest {
            // It is chosen once.
            turn.since.store(0, Ordering::Relaxed);
            turn.close.notify_one();
        }
    }
}

impl Registered {
    /// Returns when the connection is to be closed.
    pub async fn closed(&self) {
        self.turn.close.notified().await;
    }

    /// A head came: it is the server's turn.
    pub fn serve(&self) -> Upload {
        self.turn.since.store(0, Ordering::Relaxed);
        Upload { connections: self.connections.clone(), turn: self.turn.clone() }
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        self.connections.lock().by_number.remove(&self.number);
    }
}

impl Upload {
    /// The client is to send more: from now on it is waited for.
    pub fn wait(&self) {
        self.turn.since.store(self.connections.now(), Ordering::Relaxed);
    }

    /// All of it came: it is the server's turn.
    pub fn done(&self) {
        self.turn.since.store(0, Ordering::Relaxed);
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
                one.turn.since.store(since, Ordering::Relaxed);
            }
            drop(all[2].serve());
            for expected in [1, 0, 3] {
                connections.close_longest_waiting();
                // Each is told once, and only it.
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
