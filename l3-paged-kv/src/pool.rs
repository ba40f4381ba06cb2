//! The block pool: reference counts, and the free list.

use crate::{BlockId, FreeList, KvError, NULL_BLOCK, Result};

/// Pool of `num_blocks` blocks (the null block included); the number never changes.
///
/// A block is free, or one or more block tables hold it (sequences with the same prefix share blocks).
/// Each block has a reference count; at zero it returns to the free list, where it keeps its contents until
/// it is handed out again. Every misuse is an error that names the block: a wrong count would mix the text
/// of two requests.
#[derive(Clone, Debug)]
pub struct BlockPool {
    users: Vec<u32>,
    free: FreeList,
}

impl BlockPool {
    /// Maximum number of blocks: ids must fit the `i32` of a block table, where -1 means no block.
    pub const MAX_BLOCKS: usize = i32::MAX as usize;

    /// Creates a pool in which all blocks but block 0 are free.
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

    /// Number of blocks, the null block included.
    pub fn num_blocks(&self) -> usize {
        self.users.len()
    }

    /// Number of free blocks.
    pub fn num_free(&self) -> usize {
        self.free.len()
    }

    /// Fraction of blocks in use, `1 - free / (num_blocks - 1)`: cached but unused blocks count as free.
    pub fn usage(&self) -> f64 {
        // exercise l3.pool
        1.0 - self.num_free() as f64 / (self.num_blocks() - 1) as f64
        // end of exercise
    }

    /// Reference count of a block: 0 if it is free.
    ///
    /// # Errors
    /// [`KvError::UnknownBlock`].
    pub fn ref_count(&self, block: BlockId) -> Result<u32> {
        let count = self.users.get(block as usize).copied();
        count.ok_or(KvError::UnknownBlock { block, num_blocks: self.users.len() })
    }

    /// Takes the first block of the free list, with a reference count of 1. Its old contents are lost, so
    /// the caller must remove its hash from the prefix cache.
    pub fn pop(&mut self) -> Option<BlockId> {
        // exercise l3.pool
        let block = self.free.pop_front()?;
        self.users[block as usize] = 1;
        Some(block)
        // end of exercise
    }

    /// Adds a reference for a prefix hit. A free block leaves the free list. Returns whether it was free.
    ///
    /// Only the prefix cache may share a free block (it knows what the block holds); a table can only share
    /// blocks that it holds, with [`share`](Self::share).
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

    /// Adds a reference to a block that is in use.
    ///
    /// # Errors
    /// As [`touch`](Self::touch), and [`KvError::NotAllocated`] if the block is free.
    pub fn share(&mut self, block: BlockId) -> Result<()> {
        if self.checked(block, "shared")? == 0 {
            return Err(KvError::NotAllocated { block, attempt: "shared" });
        }
        self.touch(block)?;
        Ok(())
    }

    /// Removes a reference. At zero the block becomes free: at the back of the free list if
    /// `keep_contents` (it has a hash), so that it is handed out as late as possible; otherwise at the
    /// front, so that cached blocks live longer. Returns whether it became free.
    ///
    /// # Errors
    /// [`KvError::NullBlock`], [`KvError::UnknownBlock`]; [`KvError::NotAllocated`] if it is
    /// already free.
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

    /// Free blocks, in the order in which they will be handed out.
    pub fn free_list(&self) -> &FreeList {
        &self.free
    }

    /// Reference count of a block; an error for the null block and unknown blocks.
    fn checked(&self, block: BlockId, attempt: &'static str) -> Result<u32> {
        if block == NULL_BLOCK {
            return Err(KvError::NullBlock { attempt });
        }
        self.ref_count(block)
    }
}
