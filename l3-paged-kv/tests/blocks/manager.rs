//! Steps: hashes that are pending, certain, or withdrawn.

use l3_paged_kv::{
    Admission, BlockHasher, BlockId, BlockManager, CopyBlock, ExtraKeys, KvError, ManagerConfig,
    PrefixHit, SeqId, TokenChain,
};

const SIZE: usize = 4;

fn manager(num_blocks: usize) -> BlockManager {
    BlockManager::new(ManagerConfig::new(num_blocks, SIZE)).unwrap()
}

fn chain(from: u32, len: usize) -> TokenChain {
    let mut chain = TokenChain::new(&BlockHasher::new(SIZE), ExtraKeys::default());
    chain.extend(&(from..from + len as u32).collect::<Vec<_>>());
    chain
}

/// Look up, admit and register a whole prompt; the tokens that were hit.
fn run(manager: &mut BlockManager, chain: &TokenChain) -> (SeqId, usize) {
    let hit = manager.lookup(chain);
    let want = Admission { up_to_len: chain.len(), ..Admission::default() };
    let seq = manager.admit(chain, &hit, want).unwrap();
    manager.register(seq, chain, chain.len()).unwrap();
    (seq, hit.tokens)
}

fn table(manager: &BlockManager, seq: SeqId) -> Vec<BlockId> {
    manager.table(seq).unwrap().blocks().to_vec()
}

fn free_list(manager: &BlockManager) -> Vec<BlockId> {
    manager.pool().free_list().iter().collect()
}

fn hashed(manager: &BlockManager) -> Vec<BlockId> {
    let all = 1..manager.config().num_blocks as BlockId;
    all.filter(|block| manager.cache().is_cached(*block)).collect()
}

#[test]
fn only_full_blocks_of_computed_tokens_are_registered() {
    let mut manager = manager(9);
    let mut chain = chain(0, 11);
    let want = Admission { up_to_len: 11, ..Admission::default() };
    let seq = manager.admit(&chain, &PrefixHit::default(), want).unwrap();
    manager.register(seq, &chain, 7).unwrap();
    assert_eq!(hashed(&manager), [1], "a chunk of 7 tokens fills one block");
    manager.register(seq, &chain, 11).unwrap();
    assert_eq!(hashed(&manager), [1, 2], "11 tokens fill two");
    manager.register(seq, &chain, 12).unwrap();
    assert_eq!(hashed(&manager), [1, 2], "a slot without a token (a draft's) fills nothing");
    chain.push(11);
    manager.register(seq, &chain, 12).unwrap();
    assert_eq!(hashed(&manager), [1, 2, 3], "the generated token 11 fills the third");
}

#[test]
fn requests_of_one_step_share_what_it_will_compute() {
    let mut manager = manager(12);
    let prompt = chain(0, 9);
    let (a, first) = run(&mut manager, &prompt);
    let (b, second) = run(&mut manager, &prompt);
    assert_eq!((first, second), (0, 8), "tokens hit by the first and by the second");
    assert_eq!(table(&manager, a), [1, 2, 3], "the first");
    assert_eq!(table(&manager, b), [1, 2, 4], "the second: its last token is its own");
}

#[test]
fn a_fully_cached_prompt_computes_its_last_block_into_a_duplicate() {
    let mut manager = manager(12);
    let prompt = chain(0, 12);
    let (a, _) = run(&mut manager, &prompt);
    manager.commit_step();
    let (b, hit) = run(&mut manager, &prompt);
    manager.commit_step();
    assert_eq!(hit, 8, "tokens hit of 12 that are cached");
    assert_eq!(table(&manager, b), [1, 2, 4], "block 4 will hold what block 3 holds");
    assert_eq!(hashed(&manager), [1, 2, 3, 4], "both are registered");
    assert_eq!(manager.lookup(&chain(0, 13)).blocks, [1, 2, 3], "the first registered is found");
    manager.free(a).unwrap();
    manager.free(b).unwrap();
    assert_eq!(free_list(&manager), [5, 6, 7, 8, 9, 10, 11, 3, 4, 2, 1], "and all is free");
}

#[test]
fn hashes_of_a_sequence_freed_before_the_step_ran_are_withdrawn() {
    let mut manager = manager(12);
    let prompt = chain(0, 9);
    let (a, _) = run(&mut manager, &prompt);
    assert_eq!(manager.free(a).unwrap(), [], "nobody relied on it");
    assert_eq!(hashed(&manager), [0; 0], "hashes of blocks that nobody will compute");
    assert_eq!(manager.lookup(&prompt).tokens, 0, "what the next one finds");
    assert_eq!(free_list(&manager)[..4], [3, 2, 1, 4], "worthless blocks are next");
}

#[test]
fn hashes_of_a_step_that_ran_outlive_their_sequence() {
    let mut manager = manager(12);
    let prompt = chain(0, 9);
    let (a, _) = run(&mut manager, &prompt);
    manager.commit_step();
    assert_eq!(manager.free(a).unwrap(), []);
    assert_eq!(hashed(&manager), [1, 2], "computed blocks");
    assert_eq!(manager.lookup(&prompt).blocks, [1, 2], "what the next one finds");
    assert_eq!(free_list(&manager), [3, 4, 5, 6, 7, 8, 9, 10, 11, 2, 1], "the free list");
}

#[test]
fn who_relied_on_what_will_not_be_computed_goes_too_and_so_on() {
    let mut manager = manager(20);
    let (a, _) = run(&mut manager, &chain(0, 9));
    let (b, hit) = run(&mut manager, &chain(0, 17));
    assert_eq!(hit, 8, "b hits what a computes");
    let (c, hit) = run(&mut manager, &chain(0, 18));
    assert_eq!(hit, 16, "c hits what a and b compute");
    let (other, _) = run(&mut manager, &chain(100, 9));
    assert_eq!(manager.free(a).unwrap(), [b, c], "sequences that go with a");
    assert!(manager.table(b).is_err() && manager.table(c).is_err(), "they are gone");
    assert_eq!(hashed(&manager), table(&manager, other)[..2], "hashes left: the bystander's");
    manager.check_invariants().unwrap();
    manager.commit_step();
    assert_eq!(manager.lookup(&chain(0, 18)).tokens, 0, "nothing of the three is found");
    assert_eq!(manager.lookup(&chain(100, 9)).tokens, 8, "the bystander's is");
}

#[test]
fn who_relied_on_a_follower_goes_though_it_shares_nothing_with_the_first() {
    let mut manager = manager(20);
    run(&mut manager, &chain(0, 9));
    manager.commit_step();
    // a computes the same beginning again, b is told to take a's blocks for it, and c finds the old
    // ones, and behind them what b is about to compute.
    let want = Admission { up_to_len: 9, ..Admission::default() };
    let a = manager.admit(&chain(0, 9), &PrefixHit::default(), want).unwrap();
    manager.register(a, &chain(0, 9), 9).unwrap();
    let hit = PrefixHit { blocks: table(&manager, a)[..2].to_vec(), tokens: 8 };
    let want = Admission { up_to_len: 13, ..Admission::default() };
    let b = manager.admit(&chain(0, 13), &hit, want).unwrap();
    manager.register(b, &chain(0, 13), 13).unwrap();
    let (c, hit) = run(&mut manager, &chain(0, 14));
    assert_eq!((hit, &table(&manager, c)[..2]), (12, &[1, 2][..]), "what c hits, and where");
    assert_eq!(manager.free(a).unwrap(), [b, c], "sequences that go with a");
    manager.check_invariants().unwrap();
}

#[test]
fn who_relied_on_a_step_that_ran_stays() {
    let mut manager = manager(20);
    let (a, _) = run(&mut manager, &chain(0, 9));
    manager.commit_step();
    let (b, hit) = run(&mut manager, &chain(0, 17));
    assert_eq!(hit, 8, "b hits what a computed");
    assert_eq!(manager.free(a).unwrap(), [], "sequences that go with a");
    assert_eq!(table(&manager, b)[..2], [1, 2], "b keeps the blocks");
    assert_eq!(hashed(&manager).len(), 4, "and all hashes stay");
}

#[test]
fn a_followers_end_leaves_whom_it_followed_alone() {
    let mut manager = manager(20);
    let (a, _) = run(&mut manager, &chain(0, 9));
    let (b, _) = run(&mut manager, &chain(0, 17));
    assert_eq!(manager.free(b).unwrap(), [], "sequences that go with b");
    assert_eq!(table(&manager, a), [1, 2, 3], "a is untouched");
    assert_eq!(hashed(&manager), [1, 2], "hashes: a's, not what b had pending");
}

#[test]
fn a_decode_that_is_cancelled_withdraws_only_its_own_block() {
    let mut manager = manager(12);
    let mut prompt = chain(0, 7);
    let (a, _) = run(&mut manager, &prompt);
    manager.commit_step();
    prompt.push(7);
    manager.reserve(a, 8).unwrap();
    manager.register(a, &prompt, 8).unwrap();
    assert_eq!(hashed(&manager), [1, 2], "the generated token fills block 2");
    manager.free(a).unwrap();
    assert_eq!(hashed(&manager), [1], "preempted before it ran: block 1 was computed, 2 was not");
    assert_eq!(free_list(&manager)[..2], [2, 3], "block 2 is worthless, hence next");
}

#[test]
fn an_abandoned_step_leaves_no_trace() {
    let mut manager = manager(12);
    let mut old = chain(0, 7);
    let (a, _) = run(&mut manager, &old);
    manager.commit_step();
    let before = (free_list(&manager), table(&manager, a), hashed(&manager));
    for _ in 0..2 {
        old.push(7);
    }
    manager.reserve(a, 9).unwrap();
    manager.register(a, &old, 9).unwrap();
    let (b, _) = run(&mut manager, &chain(100, 9));
    let (c, _) = run(&mut manager, &chain(100, 9));
    assert_eq!(manager.abandon_step(), [b, c], "sequences admitted by the step");
    assert_eq!((free_list(&manager), table(&manager, a), hashed(&manager)), before, "as before");
    assert!(manager.table(b).is_err() && manager.table(c).is_err(), "they are gone");
    manager.check_invariants().unwrap();
    assert_eq!(manager.abandon_step(), [], "there is nothing left to abandon");
    manager.reserve(a, 9).unwrap();
    manager.register(a, &old, 9).unwrap();
    manager.commit_step();
    assert_eq!(hashed(&manager), [1, 2], "and it can be planned again");
}

#[test]
fn what_a_step_freed_stays_free_when_it_is_abandoned() {
    let mut manager = manager(12);
    let (a, _) = run(&mut manager, &chain(0, 7));
    manager.commit_step();
    manager.free(a).unwrap();
    let (b, _) = run(&mut manager, &chain(100, 7));
    assert_eq!(manager.abandon_step(), [b], "sequences admitted by the step");
    assert!(manager.table(a).is_err(), "a is still gone");
    assert_eq!(manager.num_free(), 11, "and all is free");
}

#[test]
fn another_requests_chain_cannot_be_registered() {
    let mut manager = manager(12);
    let (a, _) = run(&mut manager, &chain(0, 5));
    manager.reserve(a, 8).unwrap();
    let error = manager.register(a, &chain(100, 8), 8).unwrap_err();
    assert!(error.to_string().contains("another request's"), "{error}");
    let error = manager.register(a, &chain(0, 12), 12).unwrap_err();
    assert!(error.to_string().contains("reserve first"), "{error}");
    assert_eq!(hashed(&manager), [1], "hashes after the attempts");
}

#[test]
fn without_prefix_caching_nothing_is_hashed_and_freed_blocks_are_next() {
    let config = ManagerConfig { prefix_caching: false, ..ManagerConfig::new(9, SIZE) };
    let mut manager = BlockManager::new(config).unwrap();
    let (a, _) = run(&mut manager, &chain(0, 9));
    manager.commit_step();
    let (b, hit) = run(&mut manager, &chain(0, 9));
    manager.commit_step();
    assert_eq!((hit, hashed(&manager)), (0, vec![]), "hit, and hashes");
    manager.free(a).unwrap();
    assert_eq!(free_list(&manager), [3, 2, 1, 7, 8], "the free list");
    manager.free(b).unwrap();
    assert_eq!(free_list(&manager), [6, 5, 4, 3, 2, 1, 7, 8], "the free list");
    assert_eq!(manager.stats().requests, 0, "lookups that never happened");
}

#[test]
fn the_cache_is_reset_only_when_nobody_uses_it() {
    let mut manager = manager(9);
    let (a, _) = run(&mut manager, &chain(0, 9));
    manager.commit_step();
    let error = manager.reset_prefix_cache().unwrap_err();
    assert!(matches!(error, KvError::InUse { in_use: 3 }), "{error}");
    manager.free(a).unwrap();
    let order = free_list(&manager);
    manager.reset_prefix_cache().unwrap();
    assert_eq!(
        (hashed(&manager), manager.lookup(&chain(0, 9)).tokens),
        (vec![], 0),
        "all forgotten"
    );
    assert_eq!(free_list(&manager), order, "the order of the free list stays");
}

#[test]
fn rolling_back_inside_of_a_private_block_keeps_it() {
    let mut manager = manager(9);
    let (a, _) = run(&mut manager, &chain(0, 7));
    manager.commit_step();
    manager.reserve(a, 15).unwrap();
    assert_eq!(manager.rollback(a, 5).unwrap(), None, "nothing to copy");
    assert_eq!(table(&manager, a), [1, 2], "blocks of five tokens");
    assert_eq!(free_list(&manager)[..3], [4, 3, 5], "the others went back, tail first");
    assert_eq!(manager.rollback(a, 30).unwrap(), None, "tokens that were never there");
}

#[test]
fn rolling_back_inside_of_a_block_that_others_can_find_gets_a_private_one() {
    let mut manager = manager(9);
    let (a, _) = run(&mut manager, &chain(0, 13));
    manager.commit_step();
    let copy = manager.rollback(a, 6).unwrap();
    assert_eq!(
        table(&manager, a),
        [1, 4],
        "the table: block 4, the old tail, took block 2's place"
    );
    assert_eq!(copy, Some(CopyBlock { from: 2, to: 4, tokens: 2 }), "what to copy");
    assert_eq!(hashed(&manager), [1, 2, 3], "what others find stays, 4 is private");
    manager.commit_step();
    manager.free(a).unwrap();
    assert_eq!(free_list(&manager), [4, 5, 6, 7, 8, 3, 2, 1], "and all comes back");
}

#[test]
fn rolling_back_to_the_end_of_a_block_copies_nothing() {
    let mut manager = manager(9);
    let (a, _) = run(&mut manager, &chain(0, 13));
    manager.commit_step();
    assert_eq!(manager.rollback(a, 8).unwrap(), None, "to copy");
    assert_eq!(table(&manager, a), [1, 2], "the table");
    let mut other = chain(0, 8);
    other.extend(&[77, 78, 79, 80]);
    manager.reserve(a, 12).unwrap();
    manager.register(a, &other, 12).unwrap();
    manager.commit_step();
    assert_eq!(hashed(&manager), [1, 2, 3, 4], "another continuation is cached beside the first");
}

#[test]
fn a_rollback_that_needs_a_block_and_finds_none_changes_nothing() {
    let mut manager = manager(4);
    let (a, _) = run(&mut manager, &chain(0, 12));
    manager.commit_step();
    let hit = manager.lookup(&chain(0, 12));
    assert_eq!((hit.tokens, manager.num_free()), (8, 0));
    let want = Admission { up_to_len: 8, ..Admission::default() };
    let c = manager.admit(&chain(0, 12), &hit, want).unwrap();
    manager.commit_step();
    let error = manager.rollback(c, 6).unwrap_err();
    assert!(matches!(error, KvError::NoFreeBlocks { needed: 1, free: 0 }), "{error}");
    assert_eq!((table(&manager, c), table(&manager, a)), (vec![1, 2], vec![1, 2, 3]), "the tables");
    assert!(manager.rollback(a, 6).unwrap().is_some(), "whose own tail is free then can");
}

#[test]
fn what_others_were_promised_in_this_step_cannot_be_rolled_back() {
    let mut manager = manager(12);
    let (a, _) = run(&mut manager, &chain(0, 9));
    let (b, _) = run(&mut manager, &chain(0, 9));
    for seq in [a, b] {
        let error = manager.rollback(seq, 6).unwrap_err();
        assert!(matches!(error, KvError::Malformed(_)), "{error}");
        assert_eq!(table(&manager, seq).len(), 3, "the table after the attempt");
    }
    manager.commit_step();
    assert!(manager.rollback(a, 6).is_ok(), "after the commit it can");
}

#[test]
fn when_all_has_ended_all_is_free() {
    let mut manager = manager(40);
    let mut live = Vec::new();
    for round in 0..20u32 {
        live.push(run(&mut manager, &chain(round % 3 * 50, 5 + round as usize)).0);
        manager.commit_step();
        if live.len() > 3 {
            manager.free(live.remove(0)).unwrap();
        }
    }
    for seq in live {
        manager.free(seq).unwrap();
    }
    assert_eq!(manager.num_free(), 39, "free blocks of forty");
    assert_eq!(manager.num_sequences(), 0, "sequences");
    manager.check_invariants().unwrap();
}

#[test]
fn block_sizes_that_are_no_power_of_two_are_refused() {
    for size in [0, 3, 12, 100] {
        let error = BlockManager::new(ManagerConfig::new(9, size)).err();
        assert!(matches!(error, Some(KvError::BadConfig(_))), "{size}: {error:?}");
    }
    for size in [1, 8, 16, 256] {
        assert!(BlockManager::new(ManagerConfig::new(9, size)).is_ok(), "block size {size}");
    }
}
