//! Block tables.

use nano::{BlockPool, BlockTable};
use proptest::prelude::*;

#[test]
fn a_table_takes_a_block_when_its_last_one_is_full() {
    let mut pool = BlockPool::new(4, 4);
    let mut table = BlockTable::default();
    for (tokens, blocks) in [(1, 1), (4, 1), (5, 2), (8, 2), (9, 3)] {
        assert!(table.reserve(tokens, &mut pool));
        assert_eq!((table.blocks().len(), pool.num_free()), (blocks, 4 - blocks), "{tokens}");
    }
    assert_eq!(table.blocks(), [0, 1, 2]);
}

#[test]
fn a_table_without_enough_blocks_takes_none() {
    let mut pool = BlockPool::new(2, 4);
    let mut table = BlockTable::default();
    assert!(!table.reserve(9, &mut pool), "three blocks are needed");
    assert_eq!((table.blocks().len(), pool.num_free()), (0, 2));
    assert!(table.reserve(8, &mut pool));
    assert!(!table.reserve(9, &mut pool));
    assert_eq!((table.blocks().len(), pool.num_free()), (2, 0));
    assert!(table.reserve(3, &mut pool), "fewer tokens need no block");
}

#[test]
fn slots_follow_the_blocks() {
    let mut pool = BlockPool::new(3, 2);
    let (mut a, mut b) = (BlockTable::default(), BlockTable::default());
    assert!(a.reserve(2, &mut pool) && b.reserve(1, &mut pool) && a.reserve(3, &mut pool));
    assert_eq!((a.blocks(), b.blocks()), (&[0, 2][..], &[1][..]));
    assert_eq!(a.slots(3, &pool), [0, 1, 4]);
    assert_eq!(a.slots(1, &pool), [0]);
    assert_eq!(b.slots(1, &pool), [2]);
}

#[test]
fn released_blocks_are_free_for_others() {
    let mut pool = BlockPool::new(2, 4);
    let (mut a, mut b) = (BlockTable::default(), BlockTable::default());
    assert!(a.reserve(8, &mut pool) && !b.reserve(1, &mut pool));
    a.release(&mut pool);
    assert_eq!((a.blocks().len(), pool.num_free()), (0, 2));
    assert!(b.reserve(8, &mut pool));
}

proptest! {
    /// Whatever tables take and release, no block is in two of them, and none is lost.
    #[test]
    fn every_block_is_free_or_in_one_table(ops in prop::collection::vec((0..4usize, 0..40usize), 0..60)) {
        let mut pool = BlockPool::new(10, 4);
        let mut tables = vec![BlockTable::default(); 4];
        for (table, tokens) in ops {
            match tokens {
                0 => tables[table].release(&mut pool),
                n => _ = tables[table].reserve(n, &mut pool),
            }
            let mut held: Vec<usize> = tables.iter().flat_map(|t| t.blocks().to_vec()).collect();
            let count = held.len();
            held.sort_unstable();
            held.dedup();
            prop_assert_eq!(held.len(), count, "a block in two tables");
            prop_assert_eq!(count + pool.num_free(), 10, "blocks in all");
        }
    }
}
