//! The pool counts users, and says what somebody did wrong.

use std::collections::HashMap;

use l3_paged_kv::{BlockId, BlockPool, KvError};
use proptest::prelude::*;

fn free(pool: &BlockPool) -> Vec<BlockId> {
    pool.free_list().iter().collect()
}

#[test]
fn the_null_block_is_counted_and_never_handed_out() {
    let mut pool = BlockPool::new(5).unwrap();
    assert_eq!((pool.num_blocks(), pool.num_free()), (5, 4), "blocks, and free ones");
    let handed_out: Vec<_> = std::iter::from_fn(|| pool.pop()).collect();
    assert_eq!(handed_out, [1, 2, 3, 4], "all blocks there are");
}

#[test]
fn usage_counts_neither_the_null_block_nor_cached_ones() {
    let mut pool = BlockPool::new(5).unwrap();
    assert_eq!(pool.usage(), 0.0, "usage of a new pool");
    let block = pool.pop().unwrap();
    assert_eq!(pool.usage(), 0.25, "usage with one of four blocks in use");
    pool.release(block, true).unwrap();
    assert_eq!(pool.usage(), 0.0, "usage when the block is free, though its contents are kept");
    while pool.pop().is_some() {}
    assert_eq!(pool.usage(), 1.0, "usage of a full pool");
}

#[test]
fn a_block_is_free_when_its_last_user_leaves() {
    let mut pool = BlockPool::new(4).unwrap();
    let block = pool.pop().unwrap();
    assert_eq!(pool.ref_count(block).unwrap(), 1, "users of a block that was handed out");
    assert!(!pool.touch(block).unwrap(), "it was not free when it was shared");
    assert_eq!(pool.ref_count(block).unwrap(), 2, "users of a shared block");
    assert!(!pool.release(block, false).unwrap(), "free when the first of two leaves?");
    assert_eq!(free(&pool), [2, 3], "the free list while somebody is left");
    assert!(pool.release(block, false).unwrap(), "free when the second leaves?");
    assert_eq!(pool.ref_count(block).unwrap(), 0, "users then");
    assert_eq!(free(&pool), [1, 2, 3], "the free list then");
}

#[test]
fn worthless_blocks_go_to_the_front_and_cached_ones_to_the_back() {
    let mut pool = BlockPool::new(6).unwrap();
    let (a, b) = (pool.pop().unwrap(), pool.pop().unwrap());
    pool.release(a, true).unwrap();
    pool.release(b, false).unwrap();
    assert_eq!(free(&pool), [2, 3, 4, 5, 1], "2 has nothing worth keeping, 1 has");
    assert_eq!(pool.pop(), Some(2), "who is next");
}

#[test]
fn a_hit_on_a_free_block_takes_it_out_of_the_free_list() {
    let mut pool = BlockPool::new(5).unwrap();
    let block = pool.pop().unwrap();
    pool.release(block, true).unwrap();
    assert_eq!(free(&pool), [2, 3, 4, 1], "before the hit");
    assert!(pool.touch(block).unwrap(), "it was free");
    assert_eq!(free(&pool), [2, 3, 4], "after the hit: nobody else may get it");
    assert_eq!(pool.ref_count(block).unwrap(), 1, "its users");
    let middle = 3;
    pool.touch(middle).unwrap();
    assert_eq!(free(&pool), [2, 4], "and from the middle");
}

#[test]
fn a_block_freed_twice_is_an_error() {
    let mut pool = BlockPool::new(4).unwrap();
    let block = pool.pop().unwrap();
    pool.release(block, false).unwrap();
    let error = pool.release(block, false).unwrap_err();
    assert!(matches!(error, KvError::NotAllocated { block: 1, .. }), "{error}");
    assert!(error.to_string().contains("cannot be freed"), "{error}");
    assert_eq!(free(&pool), [1, 2, 3], "the free list after the attempt");
}

#[test]
fn a_free_block_cannot_be_shared_by_a_table_that_outlived_its_sequence() {
    let mut pool = BlockPool::new(4).unwrap();
    let block = pool.pop().unwrap();
    pool.share(block).unwrap();
    assert_eq!(pool.ref_count(block).unwrap(), 2, "users of a shared block");
    pool.release(block, false).unwrap();
    pool.release(block, false).unwrap();
    let error = pool.share(block).unwrap_err();
    assert!(matches!(error, KvError::NotAllocated { block: 1, .. }), "{error}");
}

#[test]
fn the_null_block_can_be_neither_freed_nor_shared() {
    let mut pool = BlockPool::new(4).unwrap();
    for error in [
        pool.release(0, false).unwrap_err(),
        pool.touch(0).unwrap_err(),
        pool.share(0).unwrap_err(),
    ] {
        assert!(matches!(error, KvError::NullBlock { .. }), "{error}");
    }
    assert_eq!(free(&pool), [1, 2, 3], "the free list after the attempts");
}

#[test]
fn blocks_that_do_not_exist_are_errors() {
    let mut pool = BlockPool::new(4).unwrap();
    for error in [
        pool.release(4, false).unwrap_err(),
        pool.touch(u32::MAX).unwrap_err(),
        pool.ref_count(9).unwrap_err(),
    ] {
        assert!(matches!(error, KvError::UnknownBlock { num_blocks: 4, .. }), "{error}");
    }
}

#[test]
fn pools_that_cannot_be_are_refused() {
    for num_blocks in [0, 1, BlockPool::MAX_BLOCKS + 1] {
        let error = BlockPool::new(num_blocks).err();
        assert!(matches!(error, Some(KvError::BadConfig(_))), "{num_blocks} blocks: {error:?}");
    }
}

/// A move of a random game.
#[derive(Clone, Copy, Debug)]
enum Move {
    Pop,
    Touch(BlockId),
    Share(BlockId),
    Release(BlockId, bool),
}

fn moves() -> impl Strategy<Value = Vec<Move>> {
    let block = 1u32..7;
    let one = prop_oneof![
        2 => Just(Move::Pop),
        1 => block.clone().prop_map(Move::Touch),
        1 => block.clone().prop_map(Move::Share),
        3 => (block, any::<bool>()).prop_map(|(block, keep)| Move::Release(block, keep)),
    ];
    prop::collection::vec(one, 0..40)
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 2000, failure_persistence: None, ..ProptestConfig::default()
    })]

    /// The other player keeps a list in a vector and counts in a map.
    #[test]
    fn no_game_tells_it_from_a_list_and_a_map(moves in moves()) {
        let mut pool = BlockPool::new(7).unwrap();
        let mut list: Vec<BlockId> = (1..7).collect();
        let mut users: HashMap<BlockId, u32> = HashMap::new();
        for step in moves {
            match step {
                Move::Pop => {
                    let first = (!list.is_empty()).then(|| list.remove(0));
                    users.extend(first.map(|block| (block, 1)));
                    prop_assert_eq!(pool.pop(), first, "the block that is handed out");
                }
                Move::Touch(block) => {
                    let was_free = list.contains(&block);
                    list.retain(|free| *free != block);
                    *users.entry(block).or_default() += 1;
                    prop_assert_eq!(pool.touch(block).unwrap(), was_free, "was {} free", block);
                }
                Move::Share(block) if users.contains_key(&block) => {
                    *users.entry(block).or_default() += 1;
                    pool.share(block).unwrap();
                }
                Move::Release(block, keep) if users.contains_key(&block) => {
                    let left = users[&block] - 1;
                    users.insert(block, left);
                    if left == 0 {
                        users.remove(&block);
                        list.insert(if keep { list.len() } else { 0 }, block);
                    }
                    let became_free = pool.release(block, keep).unwrap();
                    prop_assert_eq!(became_free, left == 0, "did {} become free", block);
                }
                Move::Share(block) => prop_assert!(pool.share(block).is_err(), "{} is free", block),
                Move::Release(block, keep) => {
                    prop_assert!(pool.release(block, keep).is_err(), "{} is free", block);
                }
            }
            prop_assert_eq!(free(&pool), list.clone(), "the free list after {:?}", step);
            for block in 1..7 {
                let expected = users.get(&block).copied().unwrap_or(0);
                prop_assert_eq!(pool.ref_count(block).unwrap(), expected, "users of {}", block);
            }
        }
    }
}
