//! From hashes to blocks: first come, first found, and nothing left behind.

use l3_paged_kv::{BlockHash, BlockId, GroupId, PrefixCache};
use proptest::prelude::*;

const GROUP: GroupId = GroupId(0);

/// A hash that begins like another: what tells them apart stands at the end.
fn hash(name: u8) -> BlockHash {
    let mut bytes = [0xAB; 32];
    bytes[31] = name;
    BlockHash(bytes)
}

#[test]
fn a_block_is_found_by_what_it_holds() {
    let mut cache = PrefixCache::new(8);
    assert_eq!(cache.get(GROUP, &hash(1)), None, "before anything was registered");
    assert!(cache.insert(GROUP, hash(1), 5), "a hash that is new");
    assert_eq!(cache.get(GROUP, &hash(1)), Some(5), "after it was registered");
    assert_eq!(cache.get(GROUP, &hash(2)), None, "another hash");
    assert_eq!(cache.hash_of(5), Some(&hash(1)), "the block's hash");
    assert_eq!((cache.is_cached(5), cache.is_cached(4), cache.is_cached(99)), (true, false, false));
    assert_eq!((cache.len(), cache.is_empty()), (1, false), "blocks with a hash");
}

#[test]
fn hashes_that_begin_alike_are_different_hashes() {
    let mut cache = PrefixCache::new(8);
    for block in 1..8 {
        assert!(cache.insert(GROUP, hash(block as u8), block), "hash {block} is new");
    }
    for block in 1..8 {
        assert_eq!(cache.get(GROUP, &hash(block as u8)), Some(block), "who holds hash {block}");
    }
}

#[test]
fn of_duplicates_the_first_registered_is_found() {
    let mut cache = PrefixCache::new(8);
    assert!(cache.insert(GROUP, hash(1), 6), "the first with it");
    assert!(!cache.insert(GROUP, hash(1), 2), "the second is no news");
    assert!(!cache.insert(GROUP, hash(1), 4), "nor the third");
    assert_eq!((cache.get(GROUP, &hash(1)), cache.len()), (Some(6), 3), "found, and how many");
    let first = cache.remove(6).unwrap();
    assert!(!first.last, "two more have the hash");
    assert_eq!(cache.get(GROUP, &hash(1)), Some(2), "when the first is gone: the second");
    cache.insert(GROUP, hash(1), 6);
    assert_eq!(cache.get(GROUP, &hash(1)), Some(2), "the old first comes back as the last");
    cache.remove(2);
    assert_eq!(cache.get(GROUP, &hash(1)), Some(4), "when the second is gone too: the third");
    cache.remove(6);
    assert_eq!(cache.get(GROUP, &hash(1)), Some(4), "a later one going changes nothing");
    assert!(cache.remove(4).unwrap().last, "nobody else has it now");
    assert_eq!((cache.get(GROUP, &hash(1)), cache.len()), (None, 0), "when all are gone");
}

#[test]
fn forgetting_says_what_was_forgotten() {
    let mut cache = PrefixCache::new(8);
    assert!(cache.remove(3).is_none(), "a block without a hash");
    cache.insert(GroupId(7), hash(9), 3);
    let gone = cache.remove(3).unwrap();
    assert_eq!((gone.hash, gone.group, gone.last), (hash(9), GroupId(7), true), "what it held");
    assert!(cache.remove(3).is_none(), "the second time");
    assert_eq!((cache.hash_of(3), cache.is_cached(3)), (None, false), "nothing is left of it");
}

#[test]
fn groups_of_layers_keep_apart() {
    let mut cache = PrefixCache::new(8);
    cache.insert(GroupId(0), hash(1), 2);
    assert!(cache.insert(GroupId(1), hash(1), 3), "the same hash in another group is new");
    assert_eq!(cache.get(GroupId(0), &hash(1)), Some(2), "group 0");
    assert_eq!(cache.get(GroupId(1), &hash(1)), Some(3), "group 1");
    assert_eq!(cache.get(GroupId(2), &hash(1)), None, "group 2");
}

#[test]
fn a_hash_is_announced_once_however_many_blocks_have_it() {
    let mut cache = PrefixCache::new(8);
    cache.insert(GROUP, hash(1), 2);
    cache.insert(GROUP, hash(1), 3);
    assert!(cache.announce(3), "news, through whichever block");
    assert!(!cache.announce(2) && !cache.announce(3), "but once");
    assert!(!cache.remove(2).unwrap().announced, "another block still holds it");
    assert!(!cache.announce(3), "and is not news");
    assert!(cache.remove(3).unwrap().announced, "the last one gone: others must be told");
    cache.insert(GROUP, hash(1), 4);
    assert!(!cache.remove(4).unwrap().announced, "who was never told must not be told that");
    assert!(!cache.announce(4), "a block without a hash is no news");
}

#[test]
fn clearing_leaves_nothing() {
    let mut cache = PrefixCache::new(8);
    for block in 1..8 {
        cache.insert(GROUP, hash(block as u8 / 2), block);
    }
    cache.clear();
    assert!(cache.is_empty() && (0..8).all(|b| cache.get(GROUP, &hash(b)).is_none()));
    assert!(cache.insert(GROUP, hash(1), 1), "everything is new again");
}

/// A call of the cache. A failure prints these.
#[derive(Clone, Debug)]
enum Op {
    Insert { block: BlockId, name: u8 },
    Remove { block: BlockId },
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        (1u32..40, 0u8..12).prop_map(|(block, name)| Op::Insert { block, name }),
        (1u32..40).prop_map(|block| Op::Remove { block }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Few hashes over many blocks: duplicates are the rule. The plain model is a list, in order of
    /// registration.
    #[test]
    fn it_is_a_list_in_order_of_registration(
        ops in prop::collection::vec(op(), 0..200),
    ) {
        let mut cache = PrefixCache::new(40);
        let mut plain: Vec<(u8, BlockId)> = Vec::new();
        for op in ops {
            let place = |block| plain.iter().position(|(_, b)| *b == block);
            match op {
                Op::Insert { block, name } if place(block).is_none() => {
                    let new = plain.iter().all(|(n, _)| *n != name);
                    prop_assert_eq!(cache.insert(GROUP, hash(name), block), new, "is it new");
                    plain.push((name, block));
                }
                Op::Remove { block } => {
                    let Some(place) = place(block) else { continue };
                    let (name, _) = plain.remove(place);
                    let gone = cache.remove(block).unwrap();
                    prop_assert_eq!(gone.hash, hash(name), "what block {} held", block);
                    let last = plain.iter().all(|(n, _)| *n != name);
                    prop_assert_eq!(gone.last, last, "whether no other holds it");
                }
                // A block has one hash.
                Op::Insert { .. } => continue,
            }
            prop_assert_eq!(cache.len(), plain.len(), "blocks with a hash");
            for name in 0..12 {
                let first = plain.iter().find(|(n, _)| *n == name).map(|(_, b)| *b);
                prop_assert_eq!(cache.get(GROUP, &hash(name)), first, "who holds hash {}", name);
            }
        }
    }

    /// Hashes that crowd together in the table, so that removals have gaps to close.
    #[test]
    fn crowded_hashes_are_all_found(
        ops in prop::collection::vec((1u32..60, 0u8..4), 0..300),
    ) {
        let crowded = |block: u32, home: u8| {
            let mut bytes = [0; 32];
            bytes[0] = 126 + home;
            bytes[8..12].copy_from_slice(&block.to_le_bytes());
            BlockHash(bytes)
        };
        let mut cache = PrefixCache::new(60);
        let mut plain: Vec<Option<BlockHash>> = vec![None; 60];
        for (block, home) in ops {
            match plain[block as usize].take() {
                Some(_) => prop_assert!(cache.remove(block).is_some()),
                None => {
                    cache.insert(GROUP, crowded(block, home), block);
                    plain[block as usize] = Some(crowded(block, home));
                }
            }
            for (block, hash) in (0..).zip(&plain) {
                if let Some(hash) = hash {
                    prop_assert_eq!(cache.get(GROUP, hash), Some(block), "who holds {:?}", hash);
                }
            }
        }
    }
}
