//! Lookup and admission, on caches that were filled by hand. No admission here takes a new block.

use crate::manager::testing::{cache, chain, free_list, manager};
use crate::{
    Admission, BlockHasher, BlockManager, ExtraKeys, KvError, ManagerConfig, PrefixHit, TokenChain,
};

/// Just the hit.
fn only(hit: &PrefixHit) -> Admission {
    Admission { up_to_len: hit.tokens, ..Admission::default() }
}

#[test]
fn a_prompt_of_100_tokens_has_96_cacheable_ones_at_block_size_16() {
    let mut manager = manager(20, 16);
    let chain = chain(16, 0, 100);
    let blocks = cache(&mut manager, &chain, 6);
    let hit = manager.lookup(&chain);
    assert_eq!(hit, PrefixHit { blocks, tokens: 96 }, "the hit of 100 cached tokens");
}

#[test]
fn of_64_cached_tokens_48_hit_since_one_must_be_computed() {
    let mut manager = manager(20, 16);
    let chain = chain(16, 0, 64);
    let blocks = cache(&mut manager, &chain, 4);
    let hit = manager.lookup(&chain);
    assert_eq!(hit.tokens, 48, "tokens hit, of 64 that are cached");
    assert_eq!(hit.blocks, blocks[..3], "all blocks but the last");
}

#[test]
fn one_token_more_than_the_cached_blocks_hits_all_of_them() {
    let mut manager = manager(20, 16);
    let chain = chain(16, 0, 65);
    cache(&mut manager, &chain, 4);
    assert_eq!(manager.lookup(&chain).tokens, 64, "tokens hit, of 65 of which 64 are cached");
}

#[test]
fn the_first_block_that_is_not_cached_ends_the_hit() {
    let mut manager = manager(20, 4);
    let chain = chain(4, 0, 20);
    let blocks = cache(&mut manager, &chain, 4);
    manager.cache.remove(blocks[2]);
    assert_eq!(manager.lookup(&chain).blocks, blocks[..2], "block 3 is cached, and out of reach");
    manager.cache.remove(blocks[0]);
    assert_eq!(manager.lookup(&chain), PrefixHit::default(), "the hit without the first block");
}

#[test]
fn requests_with_nothing_to_find_find_nothing() {
    let mut manager = manager(20, 4);
    let cached = chain(4, 0, 20);
    cache(&mut manager, &cached, 5);
    for (what, chain) in [
        ("no tokens", chain(4, 0, 0)),
        ("one token", chain(4, 0, 1)),
        ("one block, which must be computed", chain(4, 0, 4)),
        ("other tokens", chain(4, 1, 20)),
        ("a chain of another block size", chain(8, 0, 20)),
    ] {
        assert_eq!(manager.lookup(&chain), PrefixHit::default(), "{what}");
    }
    let salted = ExtraKeys { cache_salt: Some("mine".into()), lora: None };
    let mut salted = TokenChain::new(&BlockHasher::new(4), salted);
    salted.extend(cached.tokens());
    assert_eq!(manager.lookup(&salted), PrefixHit::default(), "another tenant");
}

#[test]
fn without_prefix_caching_nothing_is_found() {
    let config = ManagerConfig { prefix_caching: false, ..ManagerConfig::new(9, 4) };
    let manager = BlockManager::new(config).unwrap();
    assert_eq!(manager.lookup(&chain(4, 0, 20)), PrefixHit::default());
}

#[test]
fn hit_blocks_that_wait_in_the_free_list_must_be_counted_too() {
    let mut manager = manager(20, 4);
    let chain = chain(4, 0, 20);
    let blocks = cache(&mut manager, &chain, 3);
    let hit = manager.lookup(&chain);
    assert_eq!(manager.blocks_to_admit(&hit, 20), 5, "2 new blocks and 3 free ones of the hit");
    manager.pool.touch(blocks[1]).unwrap();
    assert_eq!(manager.blocks_to_admit(&hit, 20), 4, "when somebody else uses one of the hit");
    assert_eq!(manager.blocks_to_admit(&hit, 12), 2, "for nothing but the hit");
    assert_eq!(manager.blocks_to_admit(&hit, 0), 2, "for less than the hit");
    assert_eq!(
        manager.blocks_to_admit(&PrefixHit::default(), 13),
        4,
        "for 13 tokens without a hit"
    );
}

#[test]
fn a_hit_takes_its_blocks_out_of_the_free_list() {
    let mut manager = manager(8, 4);
    let chain = chain(4, 0, 13);
    let blocks = cache(&mut manager, &chain, 3);
    assert_eq!(free_list(&manager), [4, 5, 6, 7, 3, 2, 1], "before");
    let hit = manager.lookup(&chain);
    let a = manager.admit(&chain, &hit, only(&hit)).unwrap();
    assert_eq!(manager.table(a).unwrap().blocks(), blocks, "the table is the hit");
    assert_eq!(free_list(&manager), [4, 5, 6, 7], "nobody else may get them");
    let b = manager.admit(&chain, &hit, only(&hit)).unwrap();
    assert_eq!(manager.table(b).unwrap().blocks(), blocks, "another one shares them");
    for block in blocks {
        assert_eq!(manager.pool().ref_count(block).unwrap(), 2, "users of block {block}");
    }
    assert_ne!(a, b, "two sequences have two names");
}

#[test]
fn what_does_not_fit_takes_nothing() {
    let mut manager = manager(8, 4);
    let chain = chain(4, 0, 40);
    cache(&mut manager, &chain, 3);
    let hit = manager.lookup(&chain);
    let refused = |manager: &mut BlockManager, want: Admission, expected: usize, what: &str| {
        let before = free_list(manager);
        let error = manager.admit(&chain, &hit, want).unwrap_err();
        assert!(
            matches!(error, KvError::NoFreeBlocks { needed, free: 7 } if needed == expected),
            "{what}\n  expected  {expected} needed, 7 free\n  got       {error}"
        );
        assert_eq!(free_list(manager), before, "the free list after a refusal: {what}");
        assert_eq!(manager.stats().requests, 0, "a refusal is no lookup: {what}");
        assert_eq!(manager.num_sequences(), 0, "a refusal is no sequence: {what}");
    };
    let none = Admission::default();
    let all = Admission { up_to_len: 40, ..none };
    refused(&mut manager, all, 10, "ten blocks, of which three are the hit's and free");
    let whole = Admission { up_to_len: 12, must_fit_len: 29, ..none };
    refused(&mut manager, whole, 8, "the whole request would not fit, though its beginning does");
    let reserve = Admission { up_to_len: 12, keep_free: 5, ..none };
    refused(&mut manager, reserve, 8, "it fits, but not enough is left free");
    let both = Admission { up_to_len: 12, must_fit_len: 28, keep_free: 1, ..none };
    refused(&mut manager, both, 8, "the whole request fits, but not with what must stay free");
    let fits = Admission { up_to_len: 12, must_fit_len: 28, keep_free: 0, ..none };
    assert!(manager.admit(&chain, &hit, fits).is_ok(), "the whole request fits exactly");
}

#[test]
fn a_hit_that_says_something_else_now_is_refused() {
    let mut manager = manager(8, 4);
    let mine = chain(4, 0, 13);
    let blocks = cache(&mut manager, &mine, 3);
    let hit = manager.lookup(&mine);
    let other = manager.admit(&chain(4, 50, 13), &hit, only(&hit)).unwrap_err();
    assert!(matches!(other, KvError::Malformed(_)), "another request's hit: {other}");
    manager.cache.remove(blocks[1]);
    let stale = manager.admit(&mine, &hit, only(&hit)).unwrap_err();
    assert!(stale.to_string().contains("look up again"), "{stale}");
    let long = PrefixHit { blocks, tokens: 13 };
    let error = manager.admit(&mine, &long, only(&long)).unwrap_err();
    assert!(matches!(error, KvError::Malformed(_)), "a hit of half a block: {error}");
    assert_eq!(manager.num_free(), 7, "free blocks after all that");
}

#[test]
fn lookups_are_counted_when_they_lead_to_an_admission() {
    let mut manager = manager(8, 4);
    let chain = chain(4, 0, 14);
    cache(&mut manager, &chain, 3);
    for _ in 0..5 {
        manager.lookup(&chain);
    }
    let hit = manager.lookup(&chain);
    manager.admit(&chain, &hit, only(&hit)).unwrap();
    manager.admit(&chain, &hit, Admission { resumed: true, ..only(&hit) }).unwrap();
    manager.admit(&chain, &PrefixHit::default(), Admission::default()).unwrap();
    let stats = manager.stats();
    assert_eq!((stats.requests, stats.queries, stats.hits), (2, 28, 12), "first admissions");
    let preempted = (stats.preempted_requests, stats.preempted_queries, stats.preempted_hits);
    assert_eq!(preempted, (1, 14, 12), "a preempted request that came back");
}
