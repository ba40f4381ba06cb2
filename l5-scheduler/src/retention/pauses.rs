//! The pauses between the steps of a job: from the end of a step to the arrival of the next one.

use std::collections::HashMap;

use super::tools::ToolId;
use crate::jobs::IdleJobs;
use crate::{Job, JobKey, RequestView, Time};

/// Jobs that have begun and not ended. Those without unfinished requests are a bounded number, because a job may never
/// come back.
#[derive(Debug, Default)]
pub(super) struct Pauses {
    jobs: HashMap<JobKey, State>,
    idle: IdleJobs,
}

#[derive(Debug, Default)]
struct State {
    /// Requests that have arrived and not ended.
    unfinished: usize,
    /// Steps that have arrived.
    steps: u64,
    pause: Option<Pause>,
    /// Number in the list of idle jobs.
    idle: Option<u64>,
}

/// A pause: no step of the job is unfinished.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Pause {
    /// End of the step before it.
    pub since: Time,
    /// Tool that this step called.
    pub tool: Option<ToolId>,
}

impl Pauses {
    /// A request has arrived. Returns the pause that it ends.
    pub(super) fn arrived(&mut self, request: &RequestView<'_>) -> Option<Pause> {
        let state = self.jobs.entry(request.job_key()?.clone()).or_default();
        state.unfinished += 1;
        state.steps += 1;
        if let Some(idle) = state.idle.take() {
            self.idle.remove(idle);
        }
        state.pause.take()
    }

    /// A request has finished at `now` and called this tool. Asked before or after [`Pauses::ended`]: a step that is
    /// planned ahead makes the difference. While another step of the job is unfinished there is no pause.
    pub(super) fn finished(&mut self, request: &RequestView<'_>, tool: Option<ToolId>, now: Time) {
        let state = request.job_key().and_then(|job| self.jobs.get_mut(job));
        let Some(state) = state else { return };
        let itself = usize::from(!request.has_ended());
        if state.unfinished <= itself && !is_last(request) {
            state.pause = Some(Pause { since: now, tool });
        }
    }

    /// A request has ended, in whatever way. If no other step of its job is unfinished, returns the number of steps that
    /// the job had so far.
    pub(super) fn ended(&mut self, request: &RequestView<'_>) -> Option<u64> {
        let key = request.job_key()?;
        let state = self.jobs.get_mut(key)?;
        state.unfinished = state.unfinished.saturating_sub(1);
        if state.unfinished > 0 {
            return None;
        }
        let steps = state.steps;
        if is_last(request) {
            self.jobs.remove(key);
        } else {
            state.idle = Some(self.idle.add(key));
            while let Some(key) = self.idle.pop_surplus() {
                self.jobs.remove(&key);
            }
        }
        Some(steps)
    }

    /// Whether a job is between two steps, as far as it is known. The end of the first need not be reported yet.
    pub(super) fn is_paused(&self, job: &JobKey) -> bool {
        self.jobs.get(job).is_none_or(|state| state.unfinished == 0 || state.pause.is_some())
    }
}

/// Whether a request is the last step of its job.
pub(super) fn is_last(request: &RequestView<'_>) -> bool {
    matches!(request.job(), Some(Job { last_step: true, .. }))
}

/// Whether a request is a step of a job, and another step will follow.
pub(super) fn returns(request: &RequestView<'_>) -> bool {
    matches!(request.job(), Some(Job { last_step: false, .. }))
}
