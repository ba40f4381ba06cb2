//! What others want of the engine, until it has a moment: between two steps, or when it has nothing else to do.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::outbox::Outbox;
use super::{EngineError, SubmitError};
use crate::runner::AnswerJob;
use crate::{Request, RequestId, StepObserver};

/// A request on its way to the scheduler.
pub(super) struct Submission {
    pub request: Request,
    pub job: AnswerJob,
    pub outbox: Arc<Outbox>,
    /// When it was handed in. What it waited here counts.
    pub at: Instant,
    pub deadline: Option<Duration>,
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
    /// The most requests that wait, here and in the scheduler's queue.
    capacity: usize,
}

#[derive(Default)]
struct State {
    mail: Mail,
    /// Requests that wait in the scheduler's queue, as of the last step.
    queued: usize,
    /// Whether the engine has nothing to do but what is in here.
    idle: bool,
    draining: bool,
    /// How often the engine has looked in.
    looks: u64,
    ended: Option<EngineError>,
}

impl Inbox {
    pub(super) fn new(capacity: usize) -> Self {
        let state = Mutex::new(State { idle: true, ..State::default() });
        Self { state, mail: Condvar::new(), moved: Condvar::new(), capacity }
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
            if let Some(why) = &state.ended {
                return Err(why.clone().into());
            }
            if state.draining {
                return Err(SubmitError::Draining);
            }
            let there = state.mail.submissions.len() + state.queued;
            // More than there is room for at all can be taken in by nobody but an engine where nobody waits.
            if there + submissions.len() <= self.capacity || (waits && there == 0) {
                break;
            }
            if !waits {
                return Err(SubmitError::Full { waiting: self.capacity });
            }
            state = self.moved.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.mail.submissions.extend(submissions);
        state.idle = false;
        drop(state);
        self.mail.notify_one();
        Ok(())
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
    /// something. `queued` requests are in the scheduler's queue.
    pub(super) fn take(&self, mail: &mut Mail, busy: bool, queued: usize) {
        let mut state = self.lock();
        state.looks += 1;
        let had = std::mem::replace(&mut state.queued, queued);
        if had > queued {
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
        state.queued += mail.submissions.len();
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
