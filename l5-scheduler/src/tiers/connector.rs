//! The scheduler's half: which tokens of a request are in a tier.

use l3_paged_kv::TokenChain;

use super::{GROUP, State, Tiers};
use crate::{KvConnector, Matched, RequestId, SecondMemory};

/// Looks requests up in [`Tiers`].
pub struct TierConnector {
    tiers: Tiers,
    /// The request that was looked up last: while it waits, it is asked about again in each step, and counts once.
    last: Option<RequestId>,
}

impl TierConnector {
    pub(super) fn new(tiers: Tiers) -> Self {
        Self { tiers, last: None }
    }
}

impl KvConnector for TierConnector {
    fn matched_tokens(&mut self, id: RequestId, chain: &TokenChain, from: usize) -> Matched {
        let mut state = self.tiers.lock();
        let chunks = chain.hashes().len() / state.layout.blocks();
        if state.keys.get(&id).is_none_or(|keys| keys.len() != chunks) {
            let keys = state.layout.keys(&state.space, GROUP, chain.hashes());
            state.keys.insert(id, keys);
        }
        let State { tier, layout, keys, stats, .. } = &mut *state;
        let keys = keys.get(&id).map_or(&[][..], Vec::as_slice);
        let Some(tokens) = layout.matched_tokens(&mut **tier, keys, from) else {
            return Matched::AskAgain;
        };
        if self.last != Some(id) {
            self.last = Some(id);
            stats.queried += chain.len().saturating_sub(from) as u64;
            stats.matched += tokens as u64;
        }
        Matched::Tokens(tokens)
    }

    fn second_memory(&mut self) -> SecondMemory {
        let state = self.tiers.lock();
        let room = match state.chunk_bytes {
            0 => 0,
            bytes => state.tier.room() as usize / bytes * state.layout.blocks(),
        };
        SecondMemory { room, load_seconds_per_block: state.load_seconds_per_block }
    }
}
