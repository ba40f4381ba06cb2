//! Steps: hashes are pending until the forward pass has run, and are withdrawn if it does not run.

use super::reserve::release;
use crate::trace::{BlockOp, Ending};
use crate::{BlockManager, KvError, Result, SeqId, TokenChain};

impl BlockManager {
    /// Registers that this step computes the sequence's tokens `..computed_len`: the full blocks among
    /// them get their hashes, visible at once, pending until the commit. Tokens that are not in the chain
    /// (slots for drafts) are never hashed.
    ///
    /// # Errors
    /// [`KvError::UnknownSequence`]; [`KvError::Malformed`] for tokens without a slot, and for a
    /// chain that is not this sequence's.
    // Inlined, because it is called for each row of a step and seldom has a block to register.
    #[inline]
    pub fn register(&mut self, seq: SeqId, chain: &TokenChain, computed_len: usize) -> Result<()> {
        let place = self.sequences.place(seq)?;
        let (len, block_size) = (computed_len.min(chain.len()), self.config.block_size);
        // Most tokens fill no block: the number of full blocks, a division, is computed for the others only.
        let next = (self.sequences.at(place).hashed + 1) * block_size;
        if !self.config.prefix_caching || len < next {
            return Ok(());
        }
        self.register_blocks(seq, chain, computed_len)
    }

    /// Registers the blocks that are full.
    fn register_blocks(
        &mut self,
        seq: SeqId,
        chain: &TokenChain,
        computed_len: usize,
    ) -> Result<()> {
        let place = self.sequences.place(seq)?;
        let full = computed_len.min(chain.len()) / self.config.block_size;
        self.check_chain(place, chain, full)?;
        self.enter_step(place);
        self.note(&BlockOp::Registers { seq, computed_len });
        if let Some(announcements) = &mut self.announcements {
            let sequence = self.sequences.at(place);
            let blocks = &sequence.table.blocks()[sequence.hashed..full];
            announcements.registered(seq, blocks, chain, sequence.hashed);
        }
        // exercise l3.step
        for index in self.sequences.at(place).hashed..full {
            let block = self.sequences.at(place).table.blocks()[index];
            self.cache.insert(self.config.group, chain.hashes()[index], block);
            self.note_hashed(block, chain, index);
        }
        self.sequences.at_mut(place).hashed = full;
        Ok(())
        // end of exercise
    }

    /// Frees a sequence that has ended or is preempted: its blocks are released, tail first. Its pending
    /// hashes are withdrawn. Returns the sequences that this step admitted with hits on such blocks:
    /// they are freed too (and, in turn, those that hit theirs), and must be planned again.
    ///
    /// # Errors
    /// [`KvError::UnknownSequence`]; [`KvError::Malformed`] for a sequence of a step that runs while the next one is
    /// planned.
    pub fn free(&mut self, seq: SeqId) -> Result<Vec<SeqId>> {
        let place = self.sequences.place(seq)?;
        self.check_not_running(place)?;
        if self.sequences.at(place).pending().is_empty() {
            self.end_sequence(place, Ending::Freed)?;
            self.check_when_idle();
            return Ok(Vec::new());
        }
        // exercise l3.step
        let mut ending = vec![place];
        let mut next = 0;
        while let Some(&producer) = ending.get(next) {
            self.add_followers(producer, &mut ending);
            self.withdraw(producer);
            next += 1;
        }
        let unfounded = ending[1..].iter().map(|place| self.sequences.id(*place)).collect();
        for (nth, place) in ending.into_iter().enumerate() {
            self.end_sequence(place, if nth == 0 { Ending::Freed } else { Ending::Unfounded })?;
        }
        self.check_when_idle();
        Ok(unfounded)
        // end of exercise
    }

    /// Commits the step after its forward pass: pending hashes become final. If the next step is planned already, it is
    /// the one that runs that is committed.
    pub fn commit_step(&mut self) {
        if self.is_ahead {
            return self.commit_running();
        }
        if !std::mem::take(&mut self.step_is_open) {
            return;
        }
        self.note(&BlockOp::StepCommitted);
        self.settle();
        if let Some(announcements) = &mut self.announcements {
            announcements.commit(&mut self.cache, |seq| self.sequences.get(seq).is_ok());
        }
        self.check_when_idle();
    }

    /// Makes pending hashes final, and forgets the state before the step.
    fn settle(&mut self) {
        // exercise l3.step
        for place in self.step.drain(..) {
            let sequence = self.sequences.at_mut(place);
            sequence.in_step = false;
            sequence.admitted = false;
        }
        // end of exercise
    }

    /// Abandons the step: blocks that it appended return to the front of the free list, hashes that it
    /// registered are withdrawn, and sequences that it admitted are freed (and returned). Sequences that it
    /// freed or rolled back stay so, and evicted contents stay evicted. If the step was planned while another one runs,
    /// that one is the newest step again.
    pub fn abandon_step(&mut self) -> Vec<SeqId> {
        let mut gone = Vec::new();
        if std::mem::take(&mut self.step_is_open) {
            self.note(&BlockOp::StepAbandoned);
            gone = self.undo();
            if let Some(announcements) = &mut self.announcements {
                announcements.abandon();
            }
        }
        if self.is_ahead {
            self.running_is_newest();
        }
        self.check_when_idle();
        gone
    }

    /// Returns all blocks that the step took to the pool. Returns the sequences that it admitted.
    fn undo(&mut self) -> Vec<SeqId> {
        // exercise l3.step
        for nth in 0..self.step.len() {
            self.withdraw(self.step[nth]);
        }
        let mut gone = Vec::new();
        while let Some(place) = self.step.pop() {
            let sequence = self.sequences.at_mut(place);
            sequence.in_step = false;
            let (admitted, before) = (sequence.admitted, sequence.blocks_before);
            self.take_back(place, if admitted { 0 } else { before });
            if admitted {
                gone.push(self.sequences.id(place));
                self.forget_sequence(place, Ending::Abandoned);
            }
        }
        gone.reverse();
        gone
        // end of exercise
    }

    /// Withdraws the pending hashes of a sequence.
    fn withdraw(&mut self, place: u32) {
        // exercise l3.step
        for index in self.sequences.at(place).pending() {
            self.forget_hash(self.sequences.at(place).table.blocks()[index]);
        }
        let sequence = self.sequences.at_mut(place);
        sequence.hashed = sequence.hashed.min(sequence.hashed_before);
        // end of exercise
    }

    /// Adds to `ending` the sequences that this step admitted with a hit on a block which `producer` was to compute. A
    /// block's hash covers everything before it, so a sequence that shares the block has it at the same index of its
    /// table.
    fn add_followers(&self, producer: u32, ending: &mut Vec<u32>) {
        // exercise l3.step
        let blocks = self.sequences.at(producer).table.blocks();
        for index in self.sequences.at(producer).pending() {
            let block = blocks[index];
            if self.pool.ref_count(block).is_ok_and(|users| users <= 1) {
                continue;
            }
            for &place in &self.step {
                let other = self.sequences.at(place);
                let follows =
                    other.admitted && other.hit > index && other.table.blocks()[index] == block;
                if follows && !ending.contains(&place) {
                    ending.push(place);
                }
            }
        }
        // end of exercise
    }

    /// Blocks from the `from`-th on are released, tail first, each to the front: the next request
    /// gets the same ones in the same order. Those of a prefix hit become the most recently used.
    fn take_back(&mut self, place: u32, from: usize) {
        let Self { pool, cache, sequences, observer, .. } = self;
        for &block in sequences.at(place).table.blocks()[from..].iter().rev() {
            let released = release(pool, observer, block, cache.is_cached(block));
            debug_assert!(released.is_ok(), "{released:?}");
        }
        self.cut_table(place, from);
    }

    /// Ends a sequence without pending hashes.
    fn end_sequence(&mut self, place: u32, why: Ending) -> Result<()> {
        self.note(&BlockOp::SequenceEnds { seq: self.sequences.id(place), why });
        self.give_back(place, 0)?;
        if std::mem::take(&mut self.sequences.at_mut(place).in_step) {
            self.step.retain(|member| *member != place);
        }
        self.sequences.end(place);
        Ok(())
    }

    fn forget_sequence(&mut self, place: u32, why: Ending) {
        self.note(&BlockOp::SequenceEnds { seq: self.sequences.id(place), why });
        self.sequences.end(place);
    }

    /// Adds a sequence to the step, and records its state before the step, so that the step can be abandoned.
    pub(super) fn enter_step(&mut self, place: u32) {
        if !std::mem::replace(&mut self.step_is_open, true) {
            self.note(&BlockOp::StepBegins);
        }
        let sequence = self.sequences.at_mut(place);
        if !sequence.in_step {
            sequence.in_step = true;
            sequence.blocks_before = sequence.table.blocks().len();
            sequence.hashed_before = sequence.hashed;
            self.step.push(place);
        }
    }

    fn note_hashed(&mut self, block: u32, chain: &TokenChain, index: usize) {
        if self.observer.is_some() {
            let hash = chain.hashes()[index];
            let parent = index.checked_sub(1).map(|before| chain.hashes()[before]);
            self.note(&BlockOp::Hashed { block, hash, parent, pending: true });
        }
    }

    /// Checks that the chain belongs to the sequence: hashes of one sequence on the blocks of another would corrupt the
    /// cache.
    fn check_chain(&self, place: u32, chain: &TokenChain, full: usize) -> Result<()> {
        let sequence = self.sequences.at(place);
        let blocks = sequence.table.blocks();
        if chain.block_size() != self.config.block_size || full > blocks.len() {
            return Err(KvError::Malformed(format!(
                "{full} full blocks of {} tokens are to be computed, and the table has {} blocks of {}: \
                 reserve first",
                chain.block_size(),
                blocks.len(),
                self.config.block_size
            )));
        }
        let Some(last) = sequence.hashed.checked_sub(1) else { return Ok(()) };
        if self.cache.hash_of(blocks[last]) == Some(&chain.hashes()[last]) {
            return Ok(());
        }
        Err(KvError::Malformed(format!(
            "the chain says of block {} (the sequence's number {last}) something else than when it was \
             computed: it is another request's chain",
            blocks[last]
        )))
    }
}
