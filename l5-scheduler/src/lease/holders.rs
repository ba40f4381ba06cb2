//! The blocks that leases hold, each counted once.
//!
//! Agents of one program begin with the same instructions, so their leases share blocks. How many blocks would be free
//! without all leases is therefore not the sum of their lengths. It is known in constant time if each block has a count
//! of the leases that hold it, as in the block pool each has a count of its users.

use std::collections::HashMap;

use l3_paged_kv::BlockId;

/// Blocks that leases hold.
#[derive(Debug, Default)]
pub(super) struct Holders {
    /// Number of leases that hold each block; at least 1.
    by_block: HashMap<BlockId, u32>,
}

impl Holders {
    /// A lease of these blocks has begun.
    pub(super) fn hold(&mut self, blocks: &[BlockId]) {
        // exercise l5.lease
        for block in blocks {
            *self.by_block.entry(*block).or_default() += 1;
        }
        // end of exercise
    }

    /// A lease of these blocks has ended.
    pub(super) fn release(&mut self, blocks: &[BlockId]) {
        // exercise l5.lease
        for block in blocks {
            let Some(holders) = self.by_block.get_mut(block) else { continue };
            *holders -= 1;
            if *holders == 0 {
                self.by_block.remove(block);
            }
        }
        // end of exercise
    }

    /// Number of blocks that any lease holds.
    pub(super) fn len(&self) -> usize {
        self.by_block.len()
    }

    /// Whether any lease holds this block.
    pub(super) fn contains(&self, block: BlockId) -> bool {
        self.by_block.contains_key(&block)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn held(leases: &[&[BlockId]]) -> Holders {
        let mut holders = Holders::default();
        leases.iter().for_each(|blocks| holders.hold(blocks));
        holders
    }

    #[test]
    fn a_block_that_several_leases_hold_is_one_block() {
        let holders = held(&[&[4, 9, 2], &[4, 9, 7], &[4]]);
        assert_eq!(holders.len(), 4, "blocks 2, 4, 7 and 9");
        assert!(holders.contains(9) && !holders.contains(3));
        assert_eq!(Holders::default().len(), 0, "without leases");
    }

    #[test]
    fn a_block_is_held_until_its_last_lease_has_ended() {
        let mut holders = held(&[&[4, 9, 2], &[4, 9, 7], &[4]]);
        holders.release(&[4, 9, 2]);
        assert_eq!((holders.len(), holders.contains(4), holders.contains(2)), (3, true, false));
        holders.release(&[4]);
        assert_eq!((holders.len(), holders.contains(4)), (3, true));
        holders.release(&[4, 9, 7]);
        assert_eq!((holders.len(), holders.contains(4)), (0, false));
    }

    #[test]
    fn a_block_that_is_held_again_is_held_as_often_as_it_says() {
        let mut holders = held(&[&[1], &[1]]);
        holders.release(&[1]);
        holders.hold(&[1]);
        holders.release(&[1]);
        assert!(holders.contains(1), "one of two leases has ended");
        holders.release(&[1]);
        assert_eq!(holders.len(), 0);
    }

    proptest! {
        #[test]
        fn it_is_the_union_of_all_leases(
            leases in proptest::collection::vec(
                proptest::collection::btree_set(0u32..12, 0..8), 0..8),
            ended in proptest::collection::vec(any::<bool>(), 8),
        ) {
            let blocks = |n: usize| leases[n].iter().map(|block| *block as BlockId).collect::<Vec<_>>();
            let mut holders = Holders::default();
            (0..leases.len()).for_each(|n| holders.hold(&blocks(n)));
            let (ended, left): (Vec<usize>, Vec<usize>) = (0..leases.len()).partition(|n| ended[*n]);
            ended.iter().for_each(|n| holders.release(&blocks(*n)));
            let mut union: Vec<BlockId> = left.iter().flat_map(|n| blocks(*n)).collect();
            union.sort_unstable();
            union.dedup();
            prop_assert_eq!(holders.len(), union.len());
            prop_assert!(union.iter().all(|block| holders.contains(*block)));
        }
    }
}
