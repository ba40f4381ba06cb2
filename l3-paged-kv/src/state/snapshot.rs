//! A sequence set aside, and put back in any slot: copies of its blocks, and its tokens.

use l2_model::{BatchError, Snapshot};

use super::{PagedState, Slot};
use crate::{Admission, KvError, PagedKv, PrefixHit};

/// The data of a [`PagedState`]'s snapshot.
struct Saved {
    /// Namespace of the pool. Blocks of another specialist must not be restored: lookups would hit them.
    namespace: String,
    tokens: Vec<u32>,
    blocks: PagedKv,
}

impl PagedState {
    pub(super) fn take_snapshot(&self, slot: usize) -> l2_model::Result<Snapshot> {
        let Slot { seq, chain, len } = &self.slots[slot];
        let table = seq.map(|id| self.manager.table(id)).transpose()?;
        // A step that failed may have left more of either.
        let used = len.div_ceil(self.kv.block_size());
        let blocks = self.kv.save(table.map_or(&[], |t| &t.blocks()[..used]))?;
        let namespace = self.manager.config().namespace.clone();
        let tokens = chain.tokens()[..*len].to_vec();
        Ok(Snapshot { len: *len, data: Box::new(Saved { namespace, tokens, blocks }) })
    }

    pub(super) fn put_snapshot(
        &mut self,
        slot: usize,
        snapshot: &Snapshot,
    ) -> l2_model::Result<()> {
        let foreign = |why: &str| BatchError::Malformed(format!("this snapshot {why}"));
        let saved: Option<&Saved> = snapshot.data.downcast_ref();
        let saved = saved.ok_or_else(|| foreign("was taken of another kind of state"))?;
        if saved.namespace != self.manager.config().namespace {
            return Err(foreign("is another specialist's").into());
        }
        self.kv.check_saved(&saved.blocks)?;
        let len = saved.tokens.len();
        if len > self.max_len {
            return Err(BatchError::TooLong { len, capacity: self.max_len }.into());
        }
        let (needed, free) = (saved.blocks.num_blocks(), self.free_without(slot)?);
        if needed > free {
            return Err(KvError::NoFreeBlocks { needed, free }.into());
        }
        self.vacate(slot);
        if len == 0 {
            return Ok(());
        }
        let target = &mut self.slots[slot];
        target.chain.extend(&saved.tokens);
        let want = Admission { up_to_len: len, ..Admission::default() };
        let seq = self.manager.admit(&target.chain, &PrefixHit::default(), want)?;
        (target.seq, target.len) = (Some(seq), len);
        self.kv.load(self.manager.table(seq)?.blocks(), &saved.blocks)?;
        // What was copied is as certain as what was computed.
        self.manager.register(seq, &target.chain, len)?;
        self.manager.commit_step();
        Ok(())
    }

    /// Blocks that would be free if a slot were empty.
    fn free_without(&self, slot: usize) -> Result<usize, KvError> {
        let Some(seq) = self.slots[slot].seq else { return Ok(self.manager.num_free()) };
        let pool = self.manager.pool();
        let alone = |block: &&u32| pool.ref_count(**block).is_ok_and(|users| users == 1);
        let its = self.manager.table(seq)?.blocks().iter().filter(alone).count();
        Ok(self.manager.num_free() + its)
    }
}
