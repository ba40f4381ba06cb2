//! The pool counts users, and says what somebody did wrong.

use l3_paged_kv::{BlockId, BlockPool, KvError};

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
