//! What a step has brought about.

use crate::token_lists::TokenLists;
use crate::{FinishReason, Phases, RequestId, Resolved, StepLoad, StepPlan, Time};

/// Result of a step. Its memory is reused.
#[derive(Clone, Debug, Default)]
pub struct StepResult {
    /// Number of the step.
    pub step: u64,
    /// Number of tokens that were computed.
    pub scheduled_tokens: usize,
    /// Number of requests in the step.
    pub scheduled: usize,
    /// Number of rows of one token, or of one token and drafts: nearly always decode rows, which feed the newest output
    /// token.
    pub decode_rows: usize,
    /// Number of drafts, which are among the computed tokens.
    pub draft_tokens: usize,
    /// Number of drafts that were accepted.
    pub accepted_tokens: usize,
    new_tokens: TokenLists<RequestId>,
    /// Requests that ended since the last step, and why.
    pub finished: Vec<(RequestId, FinishReason)>,
    /// Requests that were preempted.
    pub preempted: Vec<RequestId>,
    /// Time at which it was applied.
    pub at: Time,
    /// Duration of each phase. Those of a step that was launched ahead overlap with those of the step before it.
    pub phases: Phases,
    /// Width of the captured step that was replayed; `None` if none was.
    pub replayed: Option<usize>,
}

impl StepResult {
    /// New tokens of each request: usually one.
    pub fn new_tokens(&self) -> impl Iterator<Item = (RequestId, &[u32])> + '_ {
        self.new_tokens.iter()
    }

    /// Notes the plan of a step.
    pub(super) fn planned(&mut self, step: &StepPlan) {
        (self.step, self.scheduled, self.scheduled_tokens) =
            (step.number, step.rows.len(), step.tokens);
        self.decode_rows = step.rows.iter().filter(|row| row.fed() == 1).count();
        self.draft_tokens = step.drafts();
        self.preempted.extend_from_slice(&step.preempted);
    }

    /// Work of the step, without the keys that it read.
    pub(crate) fn load(&self) -> StepLoad {
        StepLoad {
            prefill_tokens: self.scheduled_tokens - self.decode_rows - self.draft_tokens,
            decode_tokens: self.decode_rows,
            verify_tokens: self.draft_tokens,
            kv_tokens: 0,
        }
    }

    /// Notes the tokens of a step.
    pub(super) fn sampled(&mut self, resolved: &Resolved) {
        for row in resolved.rows().filter(|row| !row.tokens.is_empty()) {
            self.new_tokens.push(row.id, row.tokens);
        }
    }

    pub(super) fn clear(&mut self) {
        (self.scheduled, self.scheduled_tokens, self.decode_rows) = (0, 0, 0);
        (self.draft_tokens, self.accepted_tokens) = (0, 0);
        self.phases = Phases::default();
        self.replayed = None;
        self.new_tokens.clear();
        self.finished.clear();
        self.preempted.clear();
    }
}
