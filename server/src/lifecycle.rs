//! Lifecycle of the server: whether requests are accepted, and how many are in flight.

use tokio::sync::watch;

/// State of the server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum State {
    /// Requests are accepted.
    #[default]
    Serving,
    /// Requests in flight continue, and new ones are rejected.
    Draining,
    /// All replicas have ended without a shutdown.
    Failed,
}

/// State and counts of the server, shared by all tasks.
#[derive(Debug, Default)]
pub struct Lifecycle {
    state: watch::Sender<State>,
    requests: Count,
    connections: Count,
}

impl Lifecycle {
    /// Current state.
    pub fn state(&self) -> State {
        *self.state.borrow()
    }

    /// Moves on to a later state. No state follows a failure.
    pub fn set(&self, state: State) {
        self.state.send_if_modified(|own| {
            let later = state > *own;
            *own = state.max(*own);
            later
        });
    }

    /// Requests in flight: their responses are not complete.
    pub fn requests(&self) -> &Count {
        &self.requests
    }

    /// Open connections.
    pub fn connections(&self) -> &Count {
        &self.connections
    }
}

/// A count that tasks can wait on until it is 0.
#[derive(Debug, Default)]
pub struct Count(watch::Sender<usize>);

/// One unit of a [`Count`], until it is dropped.
#[derive(Debug)]
pub struct Counted(watch::Sender<usize>);

impl Count {
    /// Adds one unit.
    pub fn enter(&self) -> Counted {
        self.0.send_modify(|n| *n += 1);
        Counted(self.0.clone())
    }

    /// Current count.
    pub fn now(&self) -> usize {
        *self.0.borrow()
    }

    /// Waits until the count is 0.
    pub async fn none(&self) {
        // The sender is alive, so this cannot fail.
        let _ = self.0.subscribe().wait_for(|n| *n == 0).await;
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.send_modify(|n| *n = n.saturating_sub(1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_follows_a_failure() {
        let lifecycle = Lifecycle::default();
        assert_eq!(lifecycle.state(), State::Serving);
        lifecycle.set(State::Failed);
        lifecycle.set(State::Draining);
        assert_eq!(lifecycle.state(), State::Failed);
    }

    #[test]
    fn a_dropped_unit_is_not_counted() {
        let count = Count::default();
        let (one, two) = (count.enter(), count.enter());
        assert_eq!(count.now(), 2);
        drop((one, two));
        assert_eq!(count.now(), 0);
    }
}
