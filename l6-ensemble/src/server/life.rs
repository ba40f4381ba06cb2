//! What the server is doing: whether it takes requests, and how many are under way.

use tokio::sync::watch;

/// What the server is doing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum State {
    /// Requests are taken.
    #[default]
    Serving,
    /// What is under way goes on, and nothing new is taken.
    Draining,
    /// The engine has ended by itself.
    Failed,
}

/// What the server is doing, as seen by every task.
#[derive(Debug, Default)]
pub struct Life {
    state: watch::Sender<State>,
    requests: Count,
    connections: Count,
}

impl Life {
    /// What it is doing now.
    pub fn state(&self) -> State {
        *self.state.borrow()
    }

    /// It goes on to this. Nothing follows a failure.
    pub fn set(&self, state: State) {
        self.state.send_if_modified(|own| {
            let later = state > *own;
            *own = state.max(*own);
            later
        });
    }

    /// Requests whose responses are not yet handed over whole.
    pub fn requests(&self) -> &Count {
        &self.requests
    }

    /// Open connections.
    pub fn connections(&self) -> &Count {
        &self.connections
    }
}

/// How many of something there are, for whoever waits until there are none.
#[derive(Debug, Default)]
pub struct Count(watch::Sender<usize>);

/// One that is counted. Dropped, it is not any more.
#[derive(Debug)]
pub struct Counted(watch::Sender<usize>);

impl Count {
    /// One more.
    pub fn enter(&self) -> Counted {
        self.0.send_modify(|n| *n += 1);
        Counted(self.0.clone())
    }

    /// How many there are.
    pub fn now(&self) -> usize {
        *self.0.borrow()
    }

    /// Wait until there are none.
    pub async fn none(&self) {
        // The sender is here, so there is no other end to this.
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
        let life = Life::default();
        assert_eq!(life.state(), State::Serving);
        life.set(State::Failed);
        life.set(State::Draining);
        assert_eq!(life.state(), State::Failed);
    }

    #[test]
    fn whoever_is_dropped_is_not_counted() {
        let count = Count::default();
        let (one, two) = (count.enter(), count.enter());
        assert_eq!(count.now(), 2);
        drop((one, two));
        assert_eq!(count.now(), 0);
    }
}
