//! Whether the server takes requests: starting, serving, draining, failed.

use std::sync::atomic::{AtomicU8, Ordering};

/// What the server is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum State {
    /// Requests are taken.
    Serving = 0,
    /// What is under way goes on, and nothing new is taken.
    Draining = 1,
    /// The engine has ended by itself.
    Failed = 2,
}

/// What the server is doing, as seen by every task.
#[derive(Debug, Default)]
pub struct Life(AtomicU8);

impl Life {
    /// What it is doing now.
    pub fn state(&self) -> State {
        match self.0.load(Ordering::SeqCst) {
            0 => State::Serving,
            1 => State::Draining,
            _ => State::Failed,
        }
    }

    /// It goes on to this. Nothing follows a failure.
    pub fn set(&self, state: State) {
        self.0.fetch_max(state as u8, Ordering::SeqCst);
    }
}
