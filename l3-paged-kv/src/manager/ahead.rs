//! Planning a step while the one before it runs.
//!
//! ```text
//! step 1   plan ──> run ──────────────> commit
//! step 2            begin_step_ahead ─> plan ──> run ─────────> commit
//! step 3                                         begin_step_ahead ─> ..
//! ```
//!
//! Steps run in their order, so a sequence of the newest step may hit blocks that the running one computes. For the same
//! reason they are committed in their order and abandoned in the opposite one: if the running step fails, what was
//! planned on top of it is abandoned first. Sequences of the running step keep their blocks until it is over, because
//! it writes to them.

use crate::{BlockManager, KvError, Result};

impl BlockManager {
    /// Begins the next step while the newest one runs: what happens from now on belongs to the next step. The one that
    /// runs is committed by the next [`commit_step`](Self::commit_step).
    ///
    /// # Errors
    /// [`KvError::Malformed`] if two steps are open already, or while an observer is set: a recording has one step
    /// after the other.
    pub fn begin_step_ahead(&mut self) -> Result<()> {
        if self.is_ahead {
            let why = "two steps are open: commit or abandon one before another one begins";
            return Err(KvError::Malformed(why.to_owned()));
        }
        if self.observer.is_some() {
            let why = "an observer gets one step after the other: commit the step first";
            return Err(KvError::Malformed(why.to_owned()));
        }
        self.is_ahead = true;
        std::mem::swap(&mut self.step, &mut self.running);
        self.running_is_open = std::mem::take(&mut self.step_is_open);
        for place in &self.running {
            self.sequences.at_mut(*place).step_runs();
        }
        if let Some(announcements) = &mut self.announcements {
            announcements.swap_steps();
        }
        Ok(())
    }

    /// Commits the step that runs. The newest step is the only one then.
    pub(super) fn commit_running(&mut self) {
        self.is_ahead = false;
        for place in self.running.drain(..) {
            self.sequences.at_mut(place).running = None;
        }
        if std::mem::take(&mut self.running_is_open)
            && let Some(announcements) = &mut self.announcements
        {
            announcements.swap_steps();
            announcements.commit(&mut self.cache, |seq| self.sequences.get(seq).is_ok());
            announcements.swap_steps();
        }
    }

    /// Makes the step that runs the newest one again, after that was abandoned.
    pub(super) fn running_is_newest(&mut self) {
        self.is_ahead = false;
        std::mem::swap(&mut self.step, &mut self.running);
        self.step_is_open = std::mem::take(&mut self.running_is_open);
        for place in &self.step {
            self.sequences.at_mut(*place).step_is_newest();
        }
        if let Some(announcements) = &mut self.announcements {
            announcements.swap_steps();
        }
    }

    /// Checks that the running step does not write to a sequence's blocks.
    pub(super) fn check_not_running(&self, place: u32) -> Result<()> {
        if self.sequences.at(place).running.is_none() {
            return Ok(());
        }
        let seq = self.sequences.id(place);
        Err(KvError::Malformed(format!("{seq} is in a step that runs: commit or abandon it first")))
    }
}
