//! What the manager tells others: nothing that was not computed, and everything that is gone.

use l3_paged_kv::events::{EventStream, KvEvent, Medium, Subscription};
use l3_paged_kv::{
    Admission, BlockHash, BlockHasher, BlockManager, ExtraKeys, ManagerConfig, SeqId, TokenChain,
};

const SIZE: usize = 4;

fn manager(num_blocks: usize) -> (BlockManager, Subscription) {
    let stream = EventStream::new("coder", 100);
    let heard = stream.subscribe(None).unwrap();
    let config = ManagerConfig {
        namespace: "coder".to_owned(),
        events: Some(stream),
        ..ManagerConfig::new(num_blocks, SIZE)
    };
    (BlockManager::new(config).unwrap(), heard)
}

fn chain(from: u32, len: usize) -> TokenChain {
    let mut chain = TokenChain::new(&BlockHasher::new(SIZE), ExtraKeys::default());
    chain.extend(&(from..from + len as u32).collect::<Vec<_>>());
    chain
}

fn run(manager: &mut BlockManager, chain: &TokenChain) -> SeqId {
    let hit = manager.lookup(chain);
    let want = Admission { up_to_len: chain.len(), ..Admission::default() };
    let seq = manager.admit(chain, &hit, want).unwrap();
    manager.register(seq, chain, chain.len()).unwrap();
    seq
}

/// The batches that came since the last look.
fn news(heard: &mut Subscription) -> Vec<Vec<KvEvent>> {
    std::iter::from_fn(|| heard.try_recv().unwrap()).map(|batch| batch.events.clone()).collect()
}

fn stored(hashes: &[BlockHash], parent: Option<BlockHash>, tokens: &[u32]) -> KvEvent {
    KvEvent::BlockStored {
        block_hashes: hashes.to_vec(),
        parent_block_hash: parent,
        token_ids: tokens.to_vec(),
        block_size: SIZE,
        lora_name: None,
        lora_path: None,
        medium: Medium::Cpu,
        group_idx: Default::default(),
    }
}

fn removed(hashes: &[BlockHash]) -> KvEvent {
    KvEvent::BlockRemoved {
        block_hashes: hashes.to_vec(),
        medium: Medium::Cpu,
        group_idx: Default::default(),
    }
}

#[test]
fn blocks_are_announced_when_they_are_computed_and_with_what_they_hold() {
    let (mut manager, mut heard) = manager(20);
    let first = chain(0, 9);
    run(&mut manager, &first);
    assert_eq!(news(&mut heard), [[]; 0], "before the step ran");
    manager.commit_step();
    let expected = stored(&first.hashes()[..2], None, &first.tokens()[..8]);
    assert_eq!(news(&mut heard), [[expected]], "after it ran");

    let longer = chain(0, 14);
    run(&mut manager, &longer);
    manager.commit_step();
    let expected =
        stored(&longer.hashes()[2..3], Some(longer.hashes()[1]), &longer.tokens()[8..12]);
    assert_eq!(news(&mut heard), [[expected]], "only what is new, and what it follows");
    manager.commit_step();
    assert_eq!(news(&mut heard), [[]; 0], "a step in which nothing happened");
}

#[test]
fn adapters_are_named() {
    let (mut manager, mut heard) = manager(20);
    let keys = ExtraKeys { lora: Some(("sql".into(), "sql@1".into())), cache_salt: None };
    let mut prompt = TokenChain::new(&BlockHasher::new(SIZE), keys);
    prompt.extend(&[1, 2, 3, 4, 5]);
    run(&mut manager, &prompt);
    manager.commit_step();
    let KvEvent::BlockStored { lora_name, lora_path, .. } = &news(&mut heard)[0][0] else {
        panic!("a block was stored");
    };
    assert_eq!((lora_name.as_deref(), lora_path.as_deref()), (Some("sql"), Some("sql@1")));
}

#[test]
fn what_was_never_computed_is_never_announced() {
    let (mut manager, mut heard) = manager(20);
    let cancelled = run(&mut manager, &chain(0, 9));
    let kept = chain(50, 5);
    run(&mut manager, &kept);
    manager.free(cancelled).unwrap();
    manager.commit_step();
    let expected = stored(&kept.hashes()[..1], None, &kept.tokens()[..4]);
    assert_eq!(news(&mut heard), [[expected]], "the one that was not cancelled");
    run(&mut manager, &chain(100, 9));
    manager.abandon_step();
    manager.commit_step();
    assert_eq!(news(&mut heard), [[]; 0], "an abandoned step");
}

#[test]
fn duplicates_are_silent_until_the_last_is_gone() {
    let (mut manager, mut heard) = manager(8);
    let prompt = chain(0, 8);
    let a = run(&mut manager, &prompt);
    manager.commit_step();
    let b = run(&mut manager, &prompt);
    manager.commit_step();
    assert_eq!(news(&mut heard).len(), 1, "batches: the duplicate of block 2 is no news");
    manager.free(a).unwrap();
    manager.free(b).unwrap();
    let free: Vec<_> = manager.pool().free_list().iter().collect();
    assert_eq!(free, [4, 5, 6, 7, 2, 3, 1], "the two that hold the same are 2 and 3");
    let taker = run(&mut manager, &chain(100, 17));
    manager.commit_step();
    let batch = news(&mut heard).concat();
    assert!(!batch.contains(&removed(&prompt.hashes()[1..2])), "block 3 still holds it: {batch:?}");
    manager.reserve(taker, 21).unwrap();
    manager.commit_step();
    assert_eq!(news(&mut heard), [[removed(&prompt.hashes()[1..2])]], "now nobody does");
}

#[test]
fn evictions_are_told_with_the_step_that_caused_them() {
    let (mut manager, mut heard) = manager(5);
    let old = chain(0, 12);
    let a = run(&mut manager, &old);
    manager.commit_step();
    manager.free(a).unwrap();
    news(&mut heard);
    let new = chain(100, 15);
    run(&mut manager, &new);
    manager.commit_step();
    let gone = removed(&[old.hashes()[2], old.hashes()[1], old.hashes()[0]]);
    let expected = [gone, stored(&new.hashes()[..3], None, &new.tokens()[..12])];
    assert_eq!(news(&mut heard), [expected], "first what had to go, then what came");
}

#[test]
fn a_reset_is_told() {
    let (mut manager, mut heard) = manager(8);
    let a = run(&mut manager, &chain(0, 8));
    manager.commit_step();
    manager.free(a).unwrap();
    news(&mut heard);
    manager.reset_prefix_cache().unwrap();
    assert_eq!(news(&mut heard), [[KvEvent::AllBlocksCleared]]);
    run(&mut manager, &chain(0, 8));
    manager.commit_step();
    assert_eq!(news(&mut heard).concat().len(), 1, "what is cached again is told again");
}

#[test]
fn whoever_follows_the_events_knows_what_is_cached() {
    let (mut manager, mut heard) = manager(14);
    let mut known = std::collections::BTreeSet::new();
    let mut live = Vec::new();
    for round in 0..300u32 {
        let prompt = chain(round % 5 * 100, 3 + (round * 7 % 11) as usize);
        let hit = manager.lookup(&prompt);
        let want = Admission { up_to_len: prompt.len(), ..Admission::default() };
        if let Ok(seq) = manager.admit(&prompt, &hit, want) {
            manager.register(seq, &prompt, prompt.len()).unwrap();
            live.push(seq);
        }
        if round % 3 == 0 && !live.is_empty() {
            let victim = live.remove(round as usize * 5 % live.len());
            let gone = manager.free(victim).unwrap();
            live.retain(|seq| !gone.contains(seq));
        }
        if round % 7 == 6 {
            let gone = manager.abandon_step();
            live.retain(|seq| !gone.contains(seq));
        } else {
            manager.commit_step();
        }
        for event in news(&mut heard).concat() {
            match event {
                KvEvent::BlockStored { block_hashes, .. } => {
                    for hash in block_hashes {
                        assert!(known.insert(hash), "round {round}: {hash} was stored already");
                    }
                }
                KvEvent::BlockRemoved { block_hashes, .. } => {
                    for hash in block_hashes {
                        assert!(known.remove(&hash), "round {round}: {hash} was not stored");
                    }
                }
                KvEvent::AllBlocksCleared => known.clear(),
            }
        }
        let cached: std::collections::BTreeSet<_> =
            (1..14).filter_map(|block| manager.cache().hash_of(block).copied()).collect();
        assert_eq!(known, cached, "round {round}: what a listener knows");
    }
}
