//! Keys and values that are fetched from elsewhere, while the request waits with its blocks in hand.

use l3_paged_kv::TokenChain;

use super::Scheduler;
use super::budget::Budget;
use crate::RequestId;

/// Another memory of keys and values: DRAM, a disk, another machine.
pub trait KvSource: Send {
    /// How many of a request's tokens behind `from` it could deliver: whole blocks, counted in tokens. The last token is always
    /// computed, so it is not asked for.
    fn available(&mut self, chain: &TokenChain, from: usize) -> usize;
}

impl Scheduler {
    /// Requests whose keys and values have arrived begin before all who wait.
    pub(super) fn plan_holding(&mut self, budget: &mut Budget) {
        if self.holding.is_empty() {
            return;
        }
        let _ = budget;
        todo!()
    }

    /// Keys and values of a request's first `tokens` tokens are in its blocks now; fewer than asked for when something
    /// went wrong on the way. Returns whether it waits for them.
    pub fn kv_arrived(&mut self, id: RequestId, tokens: usize) -> bool {
        let _ = (id, tokens);
        todo!()
    }
}
