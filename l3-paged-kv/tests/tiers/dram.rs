//! The tier in memory.

use std::sync::Arc;
use std::time::Duration;

use l3_paged_kv::tier::{DRAM_ENTRY_BYTES, DramTier, KvTier, TierOutcome};

use crate::support::{ManualClock, bytes, get, key, present, put};

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

#[test]
fn a_protected_chunk_is_not_evicted_until_it_is_read_or_its_time_is_over() {
    let clock = ManualClock::default();
    let mut tier = DramTier::with_clock(3 * size(10), Arc::new(clock.clone()));
    let second = Duration::from_secs(1);
    for (number, seconds) in [(0, 5), (1, 9)] {
        put(&mut tier, number, 10);
        tier.protect(&key(number), seconds * second);
    }
    assert_eq!(tier.room(), size(10));
    assert_eq!(put(&mut tier, 2, 10), TierOutcome::Stored);
    assert_eq!(put(&mut tier, 3, 10), TierOutcome::Stored, "in the place of 2");
    assert_eq!(present(&mut tier, 6), [0, 1, 3]);
    tier.protect(&key(3), second);
    assert_eq!((tier.room(), put(&mut tier, 4, 10)), (0, TierOutcome::Refused), "no room at all");
    assert!(matches!(get(&mut tier, 1), TierOutcome::Hit(_)));
    assert_eq!(put(&mut tier, 4, 10), TierOutcome::Stored, "in the place of 1, which was read");
    assert_eq!(present(&mut tier, 6), [0, 3, 4]);
    clock.advance(5 * second);
    assert_eq!(put(&mut tier, 5, 10), TierOutcome::Stored);
    assert_eq!(
        present(&mut tier, 6),
        [0, 3, 5],
        "4 was used longest ago of those without protection"
    );
    assert_eq!((tier.room(), tier.stats().chunks), (3 * size(10), 3));
}
