//! Blocks: how often each is used, and which are free.

use crate::{BlockId, FreeList, KvError, NULL_BLOCK, Result};

/// `num_blocks` blocks (the null block included), made once; the number never changes.
///
/// A block is free, or some tables hold it: two that begin alike may share one. Each block counts
/// its users; at zero it goes back to the free list, where it keeps its contents until it is handed
/// out again. Every misuse is an error that names the block: a count that went wrong silently would
/// show as one request's words in another's answer.
#[derive(Clone, Debug)]
pub struct BlockPool {
    users: Vec<u32>,
    free: FreeList,
}

impl BlockPool {
    /// The most blocks: their ids must fit the `i32` of a block table, whose -1 means none.
    pub const MAX_BLOCKS: usize = i32::MAX as usize;

    /// All of them free, but for block 0.
    ///
    /// # Errors
    /// [`KvError::BadConfig`] unless there is at least one block beside the null block, and at most
    /// [`MAX_BLOCKS`](Self::MAX_BLOCKS).
    pub fn new(num_blocks: usize) -> Result<Self> {
        if !(2..=Self::MAX_BLOCKS).contains(&num_blocks) {
            return Err(KvError::BadConfig(format!(
                "a pool of {num_blocks} blocks cannot be: one is the null block, so give it 2 to {}",
                Self::MAX_BLOCKS
            )));
        }
        Ok(Self { users: vec![0; num_blocks], free: FreeList::new(num_blocks) })
    }

    /// Blocks, the null block included.
    pub fn num_blocks(&self) -> usize {
        self.users.len()
    }

    /// Blocks that can be handed out now.
    pub fn num_free(&self) -> usize {
        self.free.len()
    }

    /// `1 - free / (num_blocks - 1)`: cached but unused blocks count as free.
    pub fn usage(&self) -> f64 {
        // exercise l3.pool
        1.0 - self.num_free() as f64 / (self.num_blocks() - 1) as f64
        // end of exercise
    }

    /// How many hold a block: 0 if it is free.
    ///
    /// # Errors
    /// [`KvError::UnknownBlock`].
    pub fn ref_count(&self, block: BlockId) -> Result<u32> {
        let count = self.users.get(block as usize).copied();
        count.ok_or(KvError::UnknownBlock { block, num_blocks: self.users.len() })
    }

    /// Take the front of the free list, for one user. Its old contents are lost: whoever keeps a
    /// hash of it must forget that now.
    pub fn pop(&mut self) -> Option<BlockId> {
        // exercise l3.pool
        let block = self.free.pop_front()?;
        self.users[block as usize] = 1;
        Some(block)
        // end of exercise
    }

    /// One more user, which is what a prefix hit is. A free block leaves the free list for it.
    /// Returns whether it was free.
    ///
    /// Only the cache may share a block that is free (it knows what the block holds); a table can
    /// only share what it has, by [`share`](Self::share).
    ///
    /// # Errors
    /// [`KvError::NullBlock`], [`KvError::UnknownBlock`].
    pub fn touch(&mut self, block: BlockId) -> Result<bool> {
        let users = self.checked(block, "shared")?;
        // exercise l3.pool
        if users == 0 {
            self.free.remove(block);
        }
        self.users[block as usize] = users + 1;
        Ok(users == 0)
        // end of exercise
    }

    /// One more user of a block that has some.
    ///
    /// # Errors
    /// As [`touch`](Self::touch), and [`KvError::NotAllocated`] if nobody holds it.
    pub fn share(&mut self, block: BlockId) -> Result<()> {
        if self.checked(block, "shared")? == 0 {
            return Err(KvError::NotAllocated { block, attempt: "shared" });
        }
        self.touch(block)?;
        Ok(())
    }

    /// One user less. At zero users the block becomes free: at the back if its contents are worth
    /// keeping (it has a hash), so that it is handed out as late as possible; else at the front, so
    /// that the cached ones live longer. Returns whether it became free.
    ///
    /// # Errors
    /// [`KvError::NullBlock`], [`KvError::UnknownBlock`]; [`KvError::NotAllocated`] if it is free
    /// already.
    pub fn release(&mut self, block: BlockId, keep_contents: bool) -> Result<bool> {
        let users = self.checked(block, "freed")?;
        // exercise l3.pool
        if users == 0 {
            return Err(KvError::NotAllocated { block, attempt: "freed" });
        }
        self.users[block as usize] = users - 1;
        if users > 1 {
            return Ok(false);
        }
        if keep_contents {
            self.free.push_back(block);
        } else {
            self.free.push_front(block);
        }
        Ok(true)
        // end of exercise
    }

    /// The free blocks, next to be handed out first.
    pub fn free_list(&self) -> &FreeList {
        &self.free
    }

    /// A block's users, if it is one that can have some.
    fn checked(&self, block: BlockId, attempt: &'static str) -> Result<u32> {
        if block == NULL_BLOCK {
            return Err(KvError::NullBlock { attempt });
        }
        self.ref_count(block)
    }
}
