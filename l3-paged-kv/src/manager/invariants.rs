//! Invariants that hold between any two operations.

use crate::{BlockId, BlockManager, NULL_BLOCK};

impl BlockManager {
    /// Every invariant of pool, tables and cache; O(num_blocks). Debug builds check it whenever no
    /// sequence is there.
    ///
    /// # Errors
    /// A description of the violated invariant.
    pub fn check_invariants(&self) -> Result<(), String> {
        self.check_users()?;
        self.check_free_list()?;
        self.check_hashes()
    }

    /// Checks reference counts: a block's count is the number of its entries in all tables, and 0 for the null block.
    fn check_users(&self) -> Result<(), String> {
        let mut named = vec![0u32; self.pool.num_blocks()];
        for (seq, sequence) in self.sequences.living() {
            for &block in sequence.table.blocks() {
                match named.get_mut(block as usize) {
                    Some(count) if block != NULL_BLOCK => *count += 1,
                    _ => return Err(format!("the table of {seq} names block {block}")),
                }
            }
        }
        for (block, named) in named.into_iter().enumerate() {
            let users = self.pool.ref_count(block as BlockId).unwrap_or_default();
            if users != named {
                return Err(format!("block {block} counts {users} users, {named} tables name it"));
            }
        }
        Ok(())
    }

    /// Checks the free list: it has each block with a reference count of 0 once, and no other.
    fn check_free_list(&self) -> Result<(), String> {
        let free = self.pool.free_list();
        let mut seen = vec![false; self.pool.num_blocks()];
        for block in free.iter().take(self.pool.num_blocks()) {
            if std::mem::replace(&mut seen[block as usize], true) {
                return Err(format!("block {block} is twice in the free list"));
            }
        }
        let count = seen.iter().filter(|seen| **seen).count();
        if count != free.len() {
            return Err(format!("the free list says {} and has {count} blocks", free.len()));
        }
        for block in 1..self.pool.num_blocks() as BlockId {
            let users = self.pool.ref_count(block).unwrap_or_default();
            let listed = seen[block as usize];
            if listed == (users > 0) || listed != free.contains(block) {
                let place = if listed { "in" } else { "not in" };
                return Err(format!(
                    "block {block} has {users} users and is {place} the free list"
                ));
            }
        }
        Ok(())
    }

    /// Checks hashes: the first `hashed` blocks of a table have hashes and no others, and every hash can be looked up.
    fn check_hashes(&self) -> Result<(), String> {
        for (seq, sequence) in self.sequences.living() {
            for (index, &block) in sequence.table.blocks().iter().enumerate() {
                if self.cache.is_cached(block) != (index < sequence.hashed) {
                    return Err(format!(
                        "{seq} has {} hashed blocks; its block {block}, number {index}, does not agree",
                        sequence.hashed
                    ));
                }
            }
        }
        self.cache.check_invariants()
    }
}
