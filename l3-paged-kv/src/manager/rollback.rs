//! Rolling back: a draft was rejected, or a prompt is edited at its end.

use super::reserve::release;
use crate::trace::BlockOp;
use crate::{BlockManager, CopyBlock, KvError, Result, SeqId};

impl BlockManager {
    /// Removes a sequence's tokens from `len` on; blocks that hold none of the remaining tokens are freed,
    /// tail first.
    ///
    /// The last remaining block will be written to from its middle. If it is shared or has a hash, the table
    /// gets a private block instead, and the caller must copy the remaining tokens ([`CopyBlock`]) before
    /// anything else is written. Otherwise the block stays, and the owner of the memory clears the rest
    /// of it.
    ///
    /// # Errors
    /// [`KvError::UnknownSequence`]; [`KvError::NoFreeBlocks`] if a private block is needed and none
    /// is free; [`KvError::Malformed`] if hashed blocks among the tokens to be forgotten are computed
    /// or were hit in this very step, or if the sequence is in a step that runs while the next one is planned: commit
    /// or abandon that step first. After an error nothing has changed.
    pub fn rollback(&mut self, seq: SeqId, len: usize) -> Result<Option<CopyBlock>> {
        let place = self.sequences.place(seq)?;
        let sequence = self.sequences.at(place);
        let (whole, left) = (len / self.config.block_size, len % self.config.block_size);
        let keep = len.div_ceil(self.config.block_size);
        let blocks = sequence.table.blocks();
        if len >= sequence.table.capacity() {
            return Ok(None);
        }
        self.check_not_running(place)?;
        let promised = !sequence.pending().is_empty() && sequence.pending().end > whole;
        if promised || (sequence.admitted && sequence.hit > whole) {
            return Err(KvError::Malformed(format!(
                "{seq} cannot forget tokens from {len} on while the step is open that computes or \
                 shares them: commit or abandon it first"
            )));
        }
        let users = |block| self.pool.ref_count(block).unwrap_or_default();
        let seen = |block| users(block) > 1 || self.cache.is_cached(block);
        let replaced = (left > 0).then(|| blocks[whole]).filter(|block| seen(*block));
        if replaced.is_some() {
            let freed = blocks[keep..].iter().filter(|block| users(**block) == 1).count();
            if self.pool.num_free() + freed == 0 {
                return Err(KvError::NoFreeBlocks { needed: 1, free: 0 });
            }
        }
        if replaced.is_some() {
            // An eviction for this block is published at the end of the step.
            self.enter_step(place);
        }
        self.note(&BlockOp::RollsBack { seq, len });
        self.give_back(place, keep)?;
        let copy = match replaced {
            None => None,
            Some(from) => Some(CopyBlock { from, to: self.replace_last(place)?, tokens: left }),
        };
        let sequence = self.sequences.at_mut(place);
        sequence.hashed = sequence.hashed.min(whole);
        sequence.hit = sequence.hit.min(whole);
        // Abandoning the step does not bring back what was rolled back in it.
        sequence.hashed_before = sequence.hashed_before.min(whole);
        sequence.blocks_before = sequence.blocks_before.min(keep);
        Ok(copy)
    }

    /// Replaces the last block of a table by a private one. The old block is released last, so that it cannot be handed
    /// out as its own copy.
    fn replace_last(&mut self, place: u32) -> Result<u32> {
        let table = &self.sequences.at(place).table;
        let last = table.blocks().len() - 1;
        let old = table.blocks()[last];
        self.cut_table(place, last);
        self.grow(place, 1)?;
        let keep = self.cache.is_cached(old);
        release(&mut self.pool, &mut self.observer, old, keep)?;
        Ok(self.sequences.at(place).table.blocks()[last])
    }
}
