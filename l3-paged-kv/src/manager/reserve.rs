//! Taking blocks and giving them back.

#[cfg(test)]
mod tests;

use crate::trace::{BlockObserver, BlockOp};
use crate::{BlockId, BlockManager, BlockPool, KvError, Result, SeqId};

impl BlockManager {
    /// Appends blocks to a sequence's table until its tokens `..up_to_len` have slots. All or nothing.
    /// Returns the appended blocks.
    ///
    /// # Errors
    /// [`KvError::NoFreeBlocks`], [`KvError::UnknownSequence`].
    pub fn reserve(&mut self, seq: SeqId, up_to_len: usize) -> Result<&[BlockId]> {
        let place = self.sequences.place(seq)?;
        let table = &self.sequences.at(place).table;
        let before = table.blocks().len();
        // Most tokens need no block: the number of blocks, a division, is computed for the others only.
        if table.capacity() < up_to_len {
            let missing = table.missing(up_to_len);
            // exercise l3.reserve
            self.check_room(missing)?;
            self.enter_step(place);
            self.note(&BlockOp::Grows { seq, up_to_len });
            self.grow(place, missing)?;
            // end of exercise
        }
        Ok(&self.sequences.at(place).table.blocks()[before..])
    }

    /// Checks that `needed` blocks are free; takes none.
    pub(super) fn check_room(&mut self, needed: usize) -> Result<()> {
        let free = self.pool.num_free();
        if needed > free {
            self.note(&BlockOp::Refused { needed, free });
            return Err(KvError::NoFreeBlocks { needed, free });
        }
        Ok(())
    }

    /// Appends `count` blocks from the front of the free list to a table. Their cached contents are evicted.
    /// [`check_room`] must have succeeded.
    ///
    /// [`check_room`]: Self::check_room
    pub(super) fn grow(&mut self, place: u32, count: usize) -> Result<()> {
        // exercise l3.reserve
        for _ in 0..count {
            let Some(block) = self.pool.pop() else {
                return Err(KvError::NoFreeBlocks { needed: count, free: 0 });
            };
            self.note_taken(block);
            self.forget_hash(block);
            self.append(place, block);
        }
        Ok(())
        // end of exercise
    }

    /// Releases the blocks of a table from the `from`-th on, tail first: the end of a prefix is less likely to be hit
    /// again than its beginning, and cannot be hit without it.
    ///
    /// Blocks without a hash go to the front of the free list (no request can hit them), the
    /// last of the table first of all; those with one go to the back, so that of all cached blocks
    /// the one that was not used for longest goes first.
    pub(super) fn give_back(&mut self, place: u32, from: usize) -> Result<()> {
        let Self { pool, cache, sequences, observer, .. } = self;
        let blocks = &sequences.at(place).table.blocks()[from..];
        // exercise l3.reserve
        // Whoever is pushed to the front last is handed out first: head to tail here,
        for &block in blocks.iter().filter(|block| !cache.is_cached(**block)) {
            release(pool, observer, block, false)?;
        }
        // and tail to head there.
        for &block in blocks.iter().rev().filter(|block| cache.is_cached(**block)) {
            release(pool, observer, block, true)?;
        }
        self.cut_table(place, from);
        Ok(())
        // end of exercise
    }

    pub(super) fn append(&mut self, place: u32, block: BlockId) {
        self.sequences.at_mut(place).table.push(block);
        if self.observer.is_some() {
            self.note(&BlockOp::Append { seq: self.sequences.id(place), block });
        }
    }

    pub(super) fn note_taken(&mut self, block: BlockId) {
        if self.observer.is_some() {
            self.note(&BlockOp::Pop { block });
            self.note(&BlockOp::RefCount { block, count: 1 });
        }
    }

    pub(super) fn cut_table(&mut self, place: u32, blocks: usize) {
        let seq = self.sequences.id(place);
        let sequence = self.sequences.at_mut(place);
        if sequence.table.blocks().len() > blocks {
            sequence.table.truncate(blocks);
            self.note(&BlockOp::Truncate { seq, blocks });
        }
    }
}

/// Removes a reference to a block, and reports it to the observer.
pub(super) fn release(
    pool: &mut BlockPool,
    observer: &mut Option<Box<dyn BlockObserver>>,
    block: BlockId,
    keep_contents: bool,
) -> Result<()> {
    let freed = pool.release(block, keep_contents)?;
    if let Some(observer) = observer {
        observer.observe(&BlockOp::RefCount { block, count: pool.ref_count(block)? });
        if freed && keep_contents {
            observer.observe(&BlockOp::PushBack { block });
        } else if freed {
            observer.observe(&BlockOp::PushFront { block });
        }
    }
    Ok(())
}
