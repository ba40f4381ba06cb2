//! How many tokens of a step a request may have.

#[cfg(test)]
mod tests;

use crate::SchedulerConfig;

/// What is left of a step's tokens, and how it is dealt out.
#[derive(Clone, Copy, Debug)]
pub(super) struct Budget {
    left: usize,
    /// The most that one request may have of it.
    most: usize,
    chunked: bool,
}

impl Budget {
    /// All of a step, for `eligible` requests that run or wait.
    pub(super) fn new(config: &SchedulerConfig, eligible: usize) -> Self {
        let left = config.max_num_batched_tokens;
        let threshold = config.long_prefill_token_threshold;
        // exercise l5.chunk
        // The threshold keeps a long prompt from starving others. Who is alone starves nobody.
        let most = match threshold {
            0 => usize::MAX,
            _ if eligible <= 1 => usize::MAX,
            _ if config.long_prefill_token_threshold_adaptive => threshold.max(left / eligible),
            _ => threshold,
        };
        Self { left, most, chunked: config.enable_chunked_prefill }
        // end of exercise
    }

    /// Tokens that are left.
    pub(super) fn left(&self) -> usize {
        self.left
    }

    /// Of the tokens that a running request wants, how many it gets; 0 for none.
    pub(super) fn running(&self, wanted: usize) -> usize {
        // exercise l5.chunk
        wanted.min(self.most).min(self.left)
        // end of exercise
    }

    /// Of the tokens that a waiting request wants, how many it gets; `None` if it has to wait: because there are none, or until
    /// it gets all of them where prompts may not be computed in pieces. (A piece of the threshold's size counts as all.)
    pub(super) fn waiting(&self, wanted: usize) -> Option<usize> {
        // exercise l5.chunk
        let wanted = wanted.min(self.most);
        let enough = if self.chunked { self.left > 0 } else { self.left >= wanted };
        enough.then(|| wanted.min(self.left))
        // end of exercise
    }

    /// They are gone.
    pub(super) fn take(&mut self, tokens: usize) {
        // exercise l5.chunk
        self.left -= tokens;
        // end of exercise
    }

    /// They are there again: whoever had them does not take part after all.
    pub(super) fn give_back(&mut self, tokens: usize) {
        // exercise l5.chunk
        self.left += tokens;
        // end of exercise
    }
}
