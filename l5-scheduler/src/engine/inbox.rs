//! The engine's inbox: requests and commands for the engine, which reads them between two steps.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::outbox::Outbox;
use super::relay::RelayedEnd;
use super::{EngineError, SubmitError, ValidRequest};
use crate::runner::ChoiceJob;
use crate::{RequestId, StepObserver};

/// A request on its way to the scheduler.
pub(super) struct Submission {
    pub id: RequestId,
    pub request: Arc<ValidRequest>,
    pub job: ChoiceJob,
    pub outbox: Arc<Outbox>,
    /// Time of arrival. Time before the submission and in the inbox counts as waiting.
    pub at: Instant,
}

/// Occupancy of the scheduler after the last step.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Occupancy {
    /// Number of requests in the scheduler's queue.
    pub queued: usize,
    /// Number of requests in the queue or the inbox that could be admitted now: the free seats, or 0 while the first
    /// request in the queue lacks blocks.
    pub seats: usize,
}

/// Contents of the inbox, which the engine takes at once. The memory is reused.
#[derive(Default)]
pub(super) struct Mail {
    pub submissions: VecDeque<Submission>,
    pub aborts: Vec<RequestId>,
    pub observers: Vec<Box<dyn StepObserver>>,
    /// Relayed requests that have ended.
    pub relayed: Vec<RelayedEnd>,
    /// Why the requests that wait to be relayed must not wait any longer.
    pub unserved: Option<String>,
    pub shut_down: bool,
}

impl Mail {
    fn is_empty(&self) -> bool {
        let Self { submissions, aborts, observers, relayed, unserved, shut_down } = self;
        submissions.is_empty()
            && aborts.is_empty()
            && observers.is_empty()
            && relayed.is_empty()
            && unserved.is_none()
            && !shut_down
    }
}

/// Inbox of an engine: many threads write to it, the engine reads it. Its lock is never held during a step.
pub(super) struct Inbox {
    state: Mutex<State>,
    /// Number of submissions in the mail, for those who read the load without the lock.
    submissions: AtomicUsize,
    /// Signals that there is mail.
    mail: Condvar,
    /// Signals that there may be room, that the engine is idle, or that it has ended.
    moved: Condvar,
    /// Maximum number of waiting requests, here and in the scheduler's queue, beyond those for which seats are free.
    capacity: usize,
    /// `max_num_seqs`.
    seats: usize,
}

#[derive(Default)]
struct State {
    mail: Mail,
    occupancy: Occupancy,
    /// Whether the engine has nothing to do but what is in the inbox.
    idle: bool,
    draining: bool,
    /// Number of times that the engine has polled the inbox.
    polls: u64,
    ended: Option<EngineError>,
}

impl State {
    /// Number of requests that wait, here or in the scheduler's queue.
    fn waiting(&self) -> usize {
        self.mail.submissions.len() + self.occupancy.queued
    }
}

impl Inbox {
    /// Creates the inbox of an engine with `seats` seats, in which `capacity` requests may wait.
    pub(super) fn new(capacity: usize, seats: usize) -> Self {
        let occupancy = Occupancy { queued: 0, seats };
        let state = Mutex::new(State { idle: true, occupancy, ..State::default() });
        let (submissions, mail, moved) = (AtomicUsize::new(0), Condvar::new(), Condvar::new());
        Self { state, submissions, mail, moved, capacity, seats }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Submits requests, all or none, so that they can be admitted in one step. If `waits`, blocks while there is no
    /// room.
    ///
    /// # Errors
    /// [`SubmitError::Full`], [`SubmitError::Draining`], [`SubmitError::Stopped`].
    pub(super) fn submit(
        &self,
        submissions: impl ExactSizeIterator<Item = Submission>,
        waits: bool,
    ) -> Result<(), SubmitError> {
        let mut state = self.lock();
        loop {
            match self.room(&state, submissions.len()) {
                Ok(()) => break,
                // More requests than there is ever room for are accepted when the queue is empty.
                Err(SubmitError::Full { .. }) if waits && state.waiting() == 0 => break,
                Err(SubmitError::Full { .. }) if waits => {}
                Err(why) => return Err(why),
            }
            state = self.moved.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.mail.submissions.extend(submissions);
        self.submissions.store(state.mail.submissions.len(), Ordering::Relaxed);
        state.idle = false;
        drop(state);
        self.mail.notify_one();
        Ok(())
    }

    /// Returns whether `n` more requests could be submitted at this moment.
    ///
    /// # Errors
    /// As [`Inbox::submit`].
    pub(super) fn room_for(&self, n: usize) -> Result<(), SubmitError> {
        self.room(&self.lock(), n)
    }

    fn room(&self, state: &State, n: usize) -> Result<(), SubmitError> {
        if let Some(why) = &state.ended {
            return Err(why.clone().into());
        }
        if state.draining {
            return Err(SubmitError::Draining);
        }
        if state.waiting() + n <= self.capacity + state.occupancy.seats {
            return Ok(());
        }
        Err(SubmitError::Full { waiting: self.capacity, most: self.capacity + self.seats })
    }

    /// Sends a command. There is always room for it: commands are small, and are about requests that are there.
    pub(super) fn tell(&self, put: impl FnOnce(&mut Mail)) -> Result<(), EngineError> {
        let mut state = self.lock();
        if let Some(why) = &state.ended {
            return Err(why.clone());
        }
        put(&mut state.mail);
        state.idle = false;
        drop(state);
        self.mail.notify_one();
        Ok(())
    }

    /// Number of requests in the inbox, read without its lock.
    pub(super) fn waiting(&self) -> usize {
        self.submissions.load(Ordering::Relaxed)
    }

    /// Number of times that the engine has polled the inbox.
    pub(super) fn polls(&self) -> u64 {
        self.lock().polls
    }

    /// Moves the contents into `mail`, which must be empty. If the engine is not `busy`, blocks until there is
    /// something, or until `deadline` has passed. `now` is the occupancy of the scheduler.
    pub(super) fn take(
        &self,
        mail: &mut Mail,
        busy: bool,
        deadline: Option<Instant>,
        now: Occupancy,
    ) {
        let mut state = self.lock();
        state.polls += 1;
        let had = std::mem::replace(&mut state.occupancy, now);
        if had.queued > now.queued || had.seats < now.seats {
            self.moved.notify_all();
        }
        while !busy && state.mail.is_empty() {
            state.idle = true;
            self.moved.notify_all();
            state = match deadline.map(|at| at.saturating_duration_since(Instant::now())) {
                Some(Duration::ZERO) => break,
                Some(left) => {
                    let waited = self.mail.wait_timeout(state, left);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
                None => self.mail.wait(state).unwrap_or_else(PoisonError::into_inner),
            };
            state.polls += 1;
        }
        std::mem::swap(mail, &mut state.mail);
        self.submissions.store(0, Ordering::Relaxed);
        // Until the next poll, these requests wait nowhere else.
        state.occupancy.queued += mail.submissions.len();
    }

    /// Blocks until there is mail, for at most `timeout`.
    pub(super) fn wait_timeout(&self, timeout: Duration) {
        let state = self.lock();
        if state.mail.is_empty() {
            drop(self.mail.wait_timeout(state, timeout));
        }
    }

    /// Accepts no more requests, and blocks until all that are there have ended.
    ///
    /// # Errors
    /// [`EngineError::Failed`] if the engine failed.
    pub(super) fn drain(&self) -> Result<(), EngineError> {
        let mut state = self.lock();
        state.draining = true;
        self.moved.notify_all();
        loop {
            match &state.ended {
                Some(EngineError::ShutDown) => return Ok(()),
                Some(failed) => return Err(failed.clone()),
                None if state.idle => return Ok(()),
                None => state = self.moved.wait(state).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }

    /// Records the end of the engine. Returns the mail that will not be read.
    pub(super) fn close(&self, why: EngineError) -> Mail {
        let mut state = self.lock();
        state.ended.get_or_insert(why);
        let rest = std::mem::take(&mut state.mail);
        self.submissions.store(0, Ordering::Relaxed);
        drop(state);
        self.moved.notify_all();
        rest
    }

    /// Why the engine has ended; `None` while it runs.
    pub(super) fn ended(&self) -> Option<EngineError> {
        self.lock().ended.clone()
    }

    /// Blocks until the engine has ended, and returns why.
    pub(super) fn wait_until_ended(&self) -> EngineError {
        let mut state = self.lock();
        loop {
            if let Some(why) = &state.ended {
                return why.clone();
            }
            state = self.moved.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}
