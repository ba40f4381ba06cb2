//! Token budget of a step.

#[cfg(test)]
mod tests;

use crate::{SchedulerConfig, StepShape};

/// Tokens left in the step, and how many of them one request can have.
#[derive(Clone, Copy, Debug)]
pub(super) struct Budget {
    left: usize,
    /// Maximum number of tokens of one request.
    most: usize,
    chunked: bool,
    shape: StepShape,
}

impl Budget {
    /// Budget of a whole step of this shape, for `eligible` requests that run or wait.
    pub(super) fn new(config: &SchedulerConfig, eligible: usize, shape: StepShape) -> Self {
        let all = config.max_num_batched_tokens;
        let left = match shape {
            StepShape::Prefill { chunk: 1.. } if !config.enable_chunked_prefill => all,
            StepShape::Prefill { chunk: chunk @ 1.. } => all.min(chunk),
            StepShape::Prefill { chunk: 0 } | StepShape::Mixed | StepShape::DecodeOnly => all,
        };
        let threshold = config.long_prefill_token_threshold;
        // exercise l5.chunk
        // The threshold keeps a long prompt from starving other requests. A request that is alone has none.
        let most = match threshold {
            0 => usize::MAX,
            _ if eligible <= 1 => usize::MAX,
            _ if config.long_prefill_token_threshold_adaptive => threshold.max(left / eligible),
            _ => threshold,
        };
        Self { left, most, chunked: config.enable_chunked_prefill, shape }
        // end of exercise
    }

    /// Whether the step takes rows that decode (`decodes`), or rows that prefill.
    pub(super) fn takes(&self, decodes: bool) -> bool {
        match self.shape {
            StepShape::Mixed => true,
            StepShape::DecodeOnly => decodes,
            StepShape::Prefill { .. } => !decodes,
        }
    }

    /// Whether waiting requests can be admitted.
    pub(super) fn admits(&self) -> bool {
        self.shape != StepShape::DecodeOnly
    }

    /// Number of tokens left.
    pub(super) fn left(&self) -> usize {
        self.left
    }

    /// Number of tokens for a running request that wants `wanted`; 0 if none are left.
    pub(super) fn running(&self, wanted: usize) -> usize {
        // exercise l5.chunk
        wanted.min(self.most).min(self.left)
        // end of exercise
    }

    /// Number of tokens for a waiting request that wants `wanted`. `None` if it must wait: because no tokens are left,
    /// or, without chunked prefill, because not all of its tokens fit. (A chunk of the threshold's size counts as all.)
    pub(super) fn waiting(&self, wanted: usize) -> Option<usize> {
        if !self.admits() {
            return None;
        }
        // exercise l5.chunk
        let wanted = wanted.min(self.most);
        let enough = if self.chunked { self.left > 0 } else { self.left >= wanted };
        enough.then(|| wanted.min(self.left))
        // end of exercise
    }

    /// Takes tokens out of the budget.
    pub(super) fn take(&mut self, tokens: usize) {
        // exercise l5.chunk
        self.left -= tokens;
        // end of exercise
    }

    /// Returns tokens of a row that was removed from the step.
    pub(super) fn give_back(&mut self, tokens: usize) {
        // exercise l5.chunk
        self.left += tokens;
        // end of exercise
    }
}
