//! Taking and giving back, on caches that were filled by hand. Nothing here registers a hash.

use crate::manager::testing::{cache, chain, free_list, manager};
use crate::{Admission, BlockManager, KvError, PrefixHit, SeqId};

/// A sequence without a hit, with room for `len` tokens.
fn admit(manager: &mut BlockManager, len: usize) -> SeqId {
    let want = Admission { up_to_len: len, ..Admission::default() };
    let size = manager.config().block_size;
    manager.admit(&chain(size, 1000, len), &PrefixHit::default(), want).unwrap()
}

#[test]
fn blocks_come_from_the_front_in_order() {
    let mut manager = manager(10, 4);
    let a = admit(&mut manager, 7);
    let b = admit(&mut manager, 3);
    assert_eq!(manager.table(a).unwrap().blocks(), [1, 2], "seven tokens");
    assert_eq!(manager.table(b).unwrap().blocks(), [3], "three tokens");
    assert_eq!(manager.reserve(a, 8).unwrap(), [0; 0], "token 8 has room already");
    assert_eq!(manager.reserve(a, 17).unwrap(), [4, 5, 6], "blocks for 17 tokens");
    assert_eq!(manager.table(a).unwrap().blocks(), [1, 2, 4, 5, 6], "the table then");
    assert_eq!(manager.reserve(a, 5).unwrap(), [0; 0], "nobody shrinks by asking for less");
    assert_eq!(manager.num_free(), 3, "free blocks: six of nine are in use");
}

#[test]
fn a_reservation_gets_all_it_needs_or_nothing() {
    let mut manager = manager(5, 4);
    let a = admit(&mut manager, 8);
    let before = free_list(&manager);
    let error = manager.reserve(a, 17).unwrap_err();
    assert!(matches!(error, KvError::NoFreeBlocks { needed: 3, free: 2 }), "{error}");
    assert_eq!(manager.table(a).unwrap().blocks(), [1, 2], "the table after a refusal");
    assert_eq!(free_list(&manager), before, "the free list after a refusal");
    assert_eq!(manager.reserve(a, 16).unwrap(), [3, 4], "what fits exactly");
    let error = manager.reserve(a, 17).unwrap_err();
    assert!(matches!(error, KvError::NoFreeBlocks { needed: 1, free: 0 }), "{error}");
}

#[test]
fn an_admission_gets_all_it_needs_or_nothing() {
    let mut manager = manager(5, 4);
    let mine = chain(4, 0, 20);
    let hit_blocks = cache(&mut manager, &mine, 2);
    let hit = manager.lookup(&mine);
    let error = manager.admit(&mine, &hit, Admission { up_to_len: 20, ..Admission::default() });
    assert!(matches!(error, Err(KvError::NoFreeBlocks { needed: 5, free: 4 })), "{error:?}");
    assert_eq!(free_list(&manager), [3, 4, 2, 1], "the free list after a refusal");
    let want = Admission { up_to_len: 16, ..Admission::default() };
    let seq = manager.admit(&mine, &hit, want).unwrap();
    let expected = [hit_blocks, vec![3, 4]].concat();
    assert_eq!(manager.table(seq).unwrap().blocks(), expected, "the hit, then new blocks");
}

#[test]
fn the_hit_is_taken_before_new_blocks_so_it_cannot_be_evicted_for_itself() {
    let mut manager = manager(5, 4);
    let mine = chain(4, 0, 16);
    cache(&mut manager, &mine, 1);
    // Its block stands first in the free list.
    for block in [2, 3, 4] {
        manager.pool.touch(block).unwrap();
        manager.pool.release(block, true).unwrap();
    }
    assert_eq!(free_list(&manager), [1, 2, 3, 4], "before");
    let hit = manager.lookup(&mine);
    let want = Admission { up_to_len: 16, ..Admission::default() };
    let seq = manager.admit(&mine, &hit, want).unwrap();
    assert_eq!(manager.table(seq).unwrap().blocks(), [1, 2, 3, 4], "block 1 is the hit");
    assert!(manager.cache().is_cached(1), "and still holds what was hit");
}

#[test]
fn a_block_keeps_its_hash_until_it_is_handed_out_again() {
    let mut manager = manager(5, 4);
    let old = chain(4, 0, 13);
    cache(&mut manager, &old, 3);
    assert_eq!(free_list(&manager), [4, 3, 2, 1], "free, and still cached");
    let a = admit(&mut manager, 8);
    assert_eq!(manager.table(a).unwrap().blocks(), [4, 3], "the next two");
    assert_eq!(manager.cache().len(), 2, "cached blocks: only block 3 was forgotten");
    assert_eq!(manager.lookup(&old).blocks, [1, 2], "what is left is still found");
    manager.reserve(a, 9).unwrap();
    assert_eq!(manager.lookup(&old).blocks, [1], "the end of a text goes before its beginning");
}

#[test]
fn blocks_without_a_hash_are_next_and_the_last_of_the_table_first() {
    let mut manager = manager(9, 4);
    let a = admit(&mut manager, 12);
    let b = admit(&mut manager, 8);
    manager.free(a).unwrap();
    assert_eq!(free_list(&manager), [3, 2, 1, 6, 7, 8], "after 1, 2, 3 were freed");
    manager.free(b).unwrap();
    assert_eq!(free_list(&manager), [5, 4, 3, 2, 1, 6, 7, 8], "after 4, 5 were freed too");
    assert_eq!(manager.usage(), 0.0, "usage when all is free");
}

#[test]
fn blocks_with_a_hash_wait_at_the_back_tail_first() {
    let mut manager = manager(9, 4);
    let mine = chain(4, 0, 14);
    cache(&mut manager, &mine, 3);
    let hit = manager.lookup(&mine);
    let want = Admission { up_to_len: 18, ..Admission::default() };
    let seq = manager.admit(&mine, &hit, want).unwrap();
    assert_eq!(manager.table(seq).unwrap().blocks(), [1, 2, 3, 4, 5], "three cached, two new");
    manager.free(seq).unwrap();
    assert_eq!(
        free_list(&manager),
        [5, 4, 6, 7, 8, 3, 2, 1],
        "what nobody can find is next; what is cached waits, its end before its beginning"
    );
}

#[test]
fn a_shared_block_stays_until_its_last_user_goes() {
    let mut manager = manager(9, 4);
    let mine = chain(4, 0, 9);
    cache(&mut manager, &mine, 2);
    let hit = manager.lookup(&mine);
    let want = Admission { up_to_len: 9, ..Admission::default() };
    let a = manager.admit(&mine, &hit, want).unwrap();
    let b = manager.admit(&mine, &hit, want).unwrap();
    manager.free(a).unwrap();
    assert_eq!(free_list(&manager), [3, 5, 6, 7, 8], "only the private block of the first is free");
    manager.free(b).unwrap();
    assert_eq!(free_list(&manager), [4, 3, 5, 6, 7, 8, 2, 1], "and then everything");
}

#[test]
fn a_handle_that_outlived_its_sequence_is_an_error() {
    let mut manager = manager(9, 4);
    let a = admit(&mut manager, 4);
    manager.free(a).unwrap();
    let b = admit(&mut manager, 4);
    assert_ne!(a, b, "the place is used again, the handle is not");
    for error in [
        manager.free(a).unwrap_err(),
        manager.reserve(a, 8).map(|_| ()).unwrap_err(),
        manager.table(a).map(|_| ()).unwrap_err(),
    ] {
        assert!(matches!(error, KvError::UnknownSequence(seq) if seq == a), "{error}");
    }
    assert_eq!(manager.table(b).unwrap().blocks().len(), 1, "the new one is untouched");
}
