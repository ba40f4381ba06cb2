//! A steady decode over the manager allocates nothing: counted, with an allocator that counts.

#[path = "../../l1-tensor/tests/support/counting.rs"]
mod counting;

use counting::fewest_allocations;
use l3_paged_kv::{
    Admission, BlockHasher, BlockManager, ExtraKeys, ManagerConfig, PrefixHit, SeqId, TokenChain,
};

const SIZE: usize = 4;

fn decode(manager: &mut BlockManager, batch: &mut [(SeqId, TokenChain)]) {
    for (seq, chain) in &mut *batch {
        chain.push(7);
        manager.reserve(*seq, chain.len()).unwrap();
        manager.register(*seq, chain, chain.len()).unwrap();
    }
    manager.commit_step();
}

#[test]
fn a_decode_step_allocates_nothing_not_even_when_blocks_fill_and_others_are_evicted() {
    let mut manager = BlockManager::new(ManagerConfig::new(400, SIZE)).unwrap();
    let admit = |manager: &mut BlockManager, n: u32| {
        let mut chain =
            TokenChain::with_capacity(&BlockHasher::new(SIZE), ExtraKeys::default(), 400);
        chain.extend(&[n; 10]);
        let want = Admission { up_to_len: 10, ..Admission::default() };
        let seq = manager.admit(&chain, &PrefixHit::default(), want).unwrap();
        manager.register(seq, &chain, 10).unwrap();
        (seq, chain)
    };
    // Fill the pool with what is cached and nobody's, so that every new block is an eviction.
    let mut old: Vec<_> = (100..108).map(|n| admit(&mut manager, n)).collect();
    while manager.num_free() > 8 {
        decode(&mut manager, &mut old);
    }
    for (seq, _) in old {
        manager.free(seq).unwrap();
    }
    let cached = manager.cache().len();
    let mut batch: Vec<_> = (0..6).map(|n| admit(&mut manager, n)).collect();
    manager.commit_step();
    // Each round is two blocks long for everyone.
    let made = fewest_allocations(5, || {
        for _ in 0..2 * SIZE {
            decode(&mut manager, &mut batch);
        }
    });
    assert_eq!(made, 0, "allocations of {} steps of 6 sequences", 2 * SIZE);
    assert_eq!(batch[0].1.len(), 10 + 5 * 2 * SIZE, "tokens of each by then");
    assert!(manager.cache().len() >= cached - 8, "blocks were evicted one for one");
    manager.check_invariants().unwrap();
}

#[test]
fn requests_come_and_go_without_allocations_once_as_many_have_been_there() {
    let mut manager = BlockManager::new(ManagerConfig::new(100, SIZE)).unwrap();
    let mut chain = TokenChain::new(&BlockHasher::new(SIZE), ExtraKeys::default());
    chain.extend(&[3; 30]);
    let want = Admission { up_to_len: 30, ..Admission::default() };
    let none = PrefixHit::default();
    // Somebody is always there: an idle manager looks over its invariants in debug builds, and that
    // takes memory.
    let bystander = manager.admit(&chain, &none, want).unwrap();
    let made = fewest_allocations(5, || {
        let a = manager.admit(&chain, &none, want).unwrap();
        let b = manager.admit(&chain, &none, want).unwrap();
        manager.register(a, &chain, 30).unwrap();
        manager.register(b, &chain, 30).unwrap();
        manager.commit_step();
        manager.free(b).unwrap();
        manager.free(a).unwrap();
    });
    assert_eq!(made, 0, "allocations of two requests that came and went");
    manager.free(bystander).unwrap();
}
