//! What others want of the engine, until it has a moment: between two steps, or when it has nothing else to do.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::outbox::Outbox;
use super::{EngineError, SubmitError};
use crate::runner::AnswerJob;
use crate::{Adapter, Job, RequestId, StepObserver};

/// A request on its way to the scheduler.
pub(super) struct Submission {
    pub id: RequestId,
    pub job: AnswerJob,
    pub terms: Terms,
    pub outbox: Arc<Outbox>,
    /// When it was handed in. What it waited here counts.
    pub at: Instant,
}

/// What only the scheduler must know of a request.
pub(super) struct Terms {
    pub priority: i64,
    /// From its submission on.
    pub deadline: Option<Duration>,
    pub adapter: Option<Adapter>,
    pub cache_salt: Option<String>,
    pub job: Option<Job>,
}

/// What the scheduler has and could take, as of the last step.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Occupancy {
    /// Requests in the scheduler's queue.
    pub queued: usize,
    /// Seats that requests in the queue or in the inbox could take now: free seats, or none while the first in the queue
    /// finds no blocks.
    pub seats: usize,
}

/// What the engine takes out in one go. Its memory is used again.
#[derive(Default)]
pub(super) struct Mail {
    pub submissions: VecDeque<Submission>,
    pub aborts: Vec<RequestId>,
    pub observers: Vec<Box<dyn StepObserver>>,
    pub shut_down: bool,
}

impl Mail {
    fn is_empty(&self) -> bool {
        let Self { submissions, aborts, observers, shut_down } = self;
        submissions.is_empty() && aborts.is_empty() && observers.is_empty() && !shut_down
    }
}

/// The inbox of an engine: many put in, one takes out. It is locked for as long as that takes, and never over a step.
pub(super) struct Inbox {
    state: Mutex<State>,
    /// There is mail.
    mail: Condvar,
    /// There may be room, or the engine is idle, or it has ended.
    moved: Condvar,
    /// Maximum number of requests that wait, here and in the scheduler's queue: beyond those that free seats are for.
    capacity: usize,
    /// All seats.
    seats: usize,
}

#[derive(Default)]
struct State {
    mail: Mail,
    occupancy: Occupancy,
    /// Whether the engine has nothing to do but what is in here.
    idle: bool,
    draining: bool,
    /// How often the engine has looked in.
    looks: u64,
    ended: Option<EngineError>,
}

impl State {
    /// Requests that wait here or in the scheduler's queue.
    fn waiting(&self) -> usize {
        self.mail.submissions.len() + self.occupancy.queued
    }
}

impl Inbox {
    /// An inbox of an engine with so many seats, in which `capacity` requests may wait for one.
    pub(super) fn new(capacity: usize, seats: usize) -> Self {
        let occupancy = Occupancy { queued: 0, seats };
        let state = Mutex::new(State { idle: true, occupancy, ..State::default() });
        Self { state, mail: Condvar::new(), moved: Condvar::new(), capacity, seats }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Put requests in, all or none, so that they can be in one step. Blocks while there is no room, if it `waits`.
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
                // More than there is ever room for is taken when the queue is empty.
                Err(SubmitError::Full { .. }) if waits && state.waiting() == 0 => break,
                Err(SubmitError::Full { .. }) if waits => {}
                Err(why) => return Err(why),
            }
            state = self.moved.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.mail.submissions.extend(submissions);
        state.idle = false;
        drop(state);
        self.mail.notify_one();
        Ok(())
    }

    /// Whether `n` more requests could be put in at this moment.
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

    /// Put something else in. There is always room for it: it is little, and about what is there already.
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

    /// Requests that are in here.
    pub(super) fn waiting(&self) -> usize {
        self.lock().mail.submissions.len()
    }

    /// How often the engine has looked in.
    pub(super) fn looks(&self) -> u64 {
        self.lock().looks
    }

    /// Take what is there, into `mail`, which is empty. With nothing else to do (not `busy`), sleep until there is
    /// something. `now` is what the scheduler has.
    pub(super) fn take(&self, mail: &mut Mail, busy: bool, now: Occupancy) {
        let mut state = self.lock();
        state.looks += 1;
        let had = std::mem::replace(&mut state.occupancy, now);
        if had.queued > now.queued || had.seats < now.seats {
            self.moved.notify_all();
        }
        while !busy && state.mail.is_empty() {
            state.idle = true;
            self.moved.notify_all();
            state = self.mail.wait(state).unwrap_or_else(PoisonError::into_inner);
            state.looks += 1;
        }
        std::mem::swap(mail, &mut state.mail);
        // Until the next look they wait nowhere else.
        state.occupancy.queued += mail.submissions.len();
    }

    /// Sleep until there is mail, but not for long.
    pub(super) fn doze(&self, most: Duration) {
        let state = self.lock();
        if state.mail.is_empty() {
            drop(self.mail.wait_timeout(state, most));
        }
    }

    /// Take nothing more, and wait until everything there is done.
    ///
    /// # Errors
    /// [`EngineError::Failed`], when the engine did not come to that.
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

    /// The engine is no more. Returns what nobody will look at.
    pub(super) fn close(&self, why: EngineError) -> Mail {
        let mut state = self.lock();
        state.ended.get_or_insert(why);
        let rest = std::mem::take(&mut state.mail);
        drop(state);
        self.moved.notify_all();
        rest
    }

    /// Why there is no engine any more.
    pub(super) fn ended(&self) -> Option<EngineError> {
        self.lock().ended.clone()
    }

    /// Wait until there is no engine any more, and say why.
    pub(super) fn wait_for_the_end(&self) -> EngineError {
        let mut state = self.lock();
        loop {
            if let Some(why) = &state.ended {
                return why.clone();
            }
            state = self.moved.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}
