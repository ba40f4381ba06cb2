//! Prefix lookup and admission: the cached prefix of a request, the blocks that it needs, and its sequence.

#[cfg(test)]
mod tests;

use crate::trace::BlockOp;
use crate::{Admission, BlockManager, KvError, PrefixHit, Result, SeqId, TokenChain};

impl BlockManager {
    /// Returns the longest cached prefix in full blocks, but never all tokens. Takes no blocks; the hit is
    /// only valid until the next change of the manager.
    pub fn lookup(&self, chain: &TokenChain) -> PrefixHit {
        if !self.config.prefix_caching || chain.block_size() != self.config.block_size {
            return PrefixHit::default();
        }
        // exercise l3.lookup
        // The last token's logits have to be computed, so its block is never taken from the cache,
        // even if it is full and cached.
        let most = chain.len().saturating_sub(1) / self.config.block_size;
        let mut blocks = Vec::with_capacity(most);
        for hash in &chain.hashes()[..most] {
            let Some(block) = self.cache.get(self.config.group, hash) else { break };
            blocks.push(block);
        }
        let tokens = blocks.len() * self.config.block_size;
        PrefixHit { blocks, tokens }
        // end of exercise
    }

    /// Number of blocks that must be free to admit a request: the new blocks, and those blocks of the hit
    /// that are in the free list, because they leave it as well.
    pub fn blocks_to_admit(&self, hit: &PrefixHit, up_to_len: usize) -> usize {
        // exercise l3.lookup
        let all = up_to_len.div_ceil(self.config.block_size);
        let new = all.saturating_sub(hit.blocks.len());
        let waiting = hit.blocks.iter().filter(|block| self.pool.free_list().contains(**block));
        new + waiting.count()
        // end of exercise
    }

    /// Admits a new sequence: shares the blocks of its hit, then takes new ones. All or nothing.
    ///
    /// # Errors
    /// [`KvError::NoFreeBlocks`] if `want` does not fit; [`KvError::Malformed`] for a hit of another
    /// chain, or one that is out of date.
    pub fn admit(&mut self, chain: &TokenChain, hit: &PrefixHit, want: Admission) -> Result<SeqId> {
        self.check_hit(chain, hit)?;
        // exercise l3.lookup
        for len in [want.must_fit_len, want.up_to_len] {
            self.check_room(self.blocks_to_admit(hit, len) + want.keep_free)?;
        }
        let place = self.begin_sequence(hit);
        self.share_hit(place, hit)?;
        let missing = self.sequences.at(place).table.missing(want.up_to_len);
        if missing > 0 {
            self.grow(place, missing)?;
        }
        if self.config.prefix_caching {
            self.stats.count(chain.len(), hit.tokens, want.resumed);
        }
        Ok(self.sequences.id(place))
        // end of exercise
    }

    /// Appends the blocks of a hit to an empty table, with a reference to each. New blocks are taken afterwards, so
    /// that none of the hit's blocks is handed out as a new one.
    fn share_hit(&mut self, place: u32, hit: &PrefixHit) -> Result<()> {
        // exercise l3.lookup
        for &block in &hit.blocks {
            let was_free = self.pool.touch(block)?;
            self.sequences.at_mut(place).table.push(block);
            self.note_shared(place, block, was_free);
        }
        Ok(())
        // end of exercise
    }

    /// Begins a sequence with this hit.
    fn begin_sequence(&mut self, hit: &PrefixHit) -> u32 {
        let place = self.sequences.begin();
        let sequence = self.sequences.at_mut(place);
        (sequence.hit, sequence.hashed) = (hit.blocks.len(), hit.blocks.len());
        // The table is empty yet, and what was hit has its hashes: so it will be remembered.
        self.enter_step(place);
        self.sequences.at_mut(place).admitted = true;
        if self.observer.is_some() {
            let seq = self.sequences.id(place);
            self.note(&BlockOp::SequenceBegins { seq, label: seq.to_string().into() });
            if !hit.blocks.is_empty() {
                self.note(&BlockOp::PrefixHit { seq, blocks: hit.blocks.as_slice().into() });
            }
        }
        place
    }

    fn note_shared(&mut self, place: u32, block: u32, was_free: bool) {
        if self.observer.is_none() {
            return;
        }
        if was_free {
            self.note(&BlockOp::Unlink { block });
        }
        let count = self.pool.ref_count(block).unwrap_or_default();
        self.note(&BlockOp::RefCount { block, count });
        self.note(&BlockOp::Append { seq: self.sequences.id(place), block });
    }

    /// Checks that a hit is still valid: it is only a list of block ids.
    fn check_hit(&self, chain: &TokenChain, hit: &PrefixHit) -> Result<()> {
        let size = self.config.block_size;
        if chain.block_size() != size {
            return Err(KvError::Malformed(format!(
                "the chain hashes blocks of {} tokens, the pool's have {size}: make both alike",
                chain.block_size()
            )));
        }
        let most = chain.len().saturating_sub(1) / size;
        if hit.tokens != hit.blocks.len() * size || hit.blocks.len() > most {
            return Err(KvError::Malformed(format!(
                "a hit of {} tokens in {} blocks is not one of a request of {} tokens",
                hit.tokens,
                hit.blocks.len(),
                chain.len()
            )));
        }
        let stale = hit
            .blocks
            .iter()
            .zip(chain.hashes())
            .find(|(block, hash)| self.cache.hash_of(**block) != Some(*hash));
        match stale {
            None => Ok(()),
            Some((block, _)) => Err(KvError::Malformed(format!(
                "block {block} does not hold what the request begins with (any more): look up again"
            ))),
        }
    }
}
