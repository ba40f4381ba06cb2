//! The queue before the thread of a tier.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

struct Ops<T> {
    urgent: VecDeque<T>,
    others: VecDeque<T>,
    closed: bool,
}

/// Operations that wait for a thread, in two orders: urgent ones, which a request waits for, go first. The tier bounds
/// their number.
pub(super) struct Queue<T> {
    ops: Mutex<Ops<T>>,
    more: Condvar,
}

impl<T> Default for Queue<T> {
    fn default() -> Self {
        let ops = Ops { urgent: VecDeque::new(), others: VecDeque::new(), closed: false };
        Self { ops: Mutex::new(ops), more: Condvar::new() }
    }
}

impl<T> Queue<T> {
    /// The lock is held for a push or a pop only, which do not panic.
    fn lock(&self) -> MutexGuard<'_, Ops<T>> {
        self.ops.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn push_urgent(&self, op: T) {
        self.lock().urgent.push_back(op);
        self.more.notify_one();
    }

    pub(super) fn push(&self, op: T) {
        self.lock().others.push_back(op);
        self.more.notify_one();
    }

    /// Ends the thread when the queue is empty, or at once if what waits is to be given up.
    pub(super) fn close(&self, give_up: bool) {
        let mut ops = self.lock();
        ops.closed = true;
        if give_up {
            ops.urgent.clear();
            ops.others.clear();
        }
        self.more.notify_one();
    }

    /// The next operation; `None` when the queue is closed and empty.
    pub(super) fn pop(&self) -> Option<T> {
        let mut ops = self.lock();
        loop {
            let Ops { urgent, others, closed } = &mut *ops;
            if let Some(op) = urgent.pop_front().or_else(|| others.pop_front()) {
                return Some(op);
            }
            if *closed {
                return None;
            }
            ops = self.more.wait(ops).unwrap_or_else(PoisonError::into_inner);
        }
    }
}
