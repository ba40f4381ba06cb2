//! The tier in memory.

use l3_paged_kv::tier::{DRAM_ENTRY_BYTES, DramTier, KvTier, TierOutcome};

use crate::support::{bytes, get, present, put};

/// What a chunk of so many bytes counts.
fn size(len: u64) -> u64 {
    len + DRAM_ENTRY_BYTES
}

#[test]
fn what_was_put_is_got() {
    let mut tier = DramTier::new(1 << 20);
    assert_eq!(get(&mut tier, 1), TierOutcome::Miss);
    assert_eq!(put(&mut tier, 1, 1000), TierOutcome::Stored);
    assert_eq!(get(&mut tier, 1), TierOutcome::Hit(bytes(1, 1000)));
    assert_eq!(get(&mut tier, 2), TierOutcome::Miss);
    let stats = tier.stats();
    assert_eq!((stats.hits, stats.misses, stats.stored), (1, 2, 1));
}

#[test]
fn bytes_are_counted_exactly_and_the_chunk_used_longest_ago_goes() {
    let mut tier = DramTier::new(3 * size(100));
    (0..3).for_each(|n| assert_eq!(put(&mut tier, n, 100), TierOutcome::Stored));
    assert_eq!(tier.stats().bytes, 3 * size(100), "three chunks fill it to the byte");
    assert_eq!(get(&mut tier, 0), TierOutcome::Hit(bytes(0, 100)));
    put(&mut tier, 3, 100);
    assert_eq!(present(&mut tier, 10), [0, 2, 3], "the first one was used since");
    // Put again: that is a use as well, and takes no room.
    put(&mut tier, 2, 100);
    put(&mut tier, 4, 101);
    assert_eq!(present(&mut tier, 10), [2, 4], "one byte more takes the room of two");
    let stats = tier.stats();
    assert_eq!((stats.bytes, stats.chunks), (size(100) + size(101), 2));
    assert_eq!((stats.evicted, stats.stored), (3, 5));
}

#[test]
fn a_chunk_larger_than_the_tier_is_refused_and_evicts_nothing() {
    let mut tier = DramTier::new(size(100));
    put(&mut tier, 0, 100);
    assert_eq!(put(&mut tier, 1, 101), TierOutcome::Refused);
    assert_eq!(present(&mut tier, 10), [0]);
    assert_eq!(tier.stats().refused, 1);
    assert_eq!(put(&mut DramTier::new(0), 0, 0), TierOutcome::Refused, "a tier without memory");
}

#[test]
fn a_question_is_no_use() {
    let mut tier = DramTier::new(2 * size(10));
    put(&mut tier, 0, 10);
    put(&mut tier, 1, 10);
    assert_eq!(present(&mut tier, 2), [0, 1]);
    put(&mut tier, 2, 10);
    assert_eq!(present(&mut tier, 3), [1, 2]);
}
