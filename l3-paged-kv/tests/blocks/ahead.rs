//! A step that is planned while the one before it runs.

use l3_paged_kv::events::{EventStream, KvEvent};
use l3_paged_kv::trace::{BlockObserver, BlockOp};
use l3_paged_kv::{
    Admission, BlockHasher, BlockId, BlockManager, ExtraKeys, KvError, ManagerConfig, SeqId,
    TokenChain,
};
use proptest::prelude::*;

const SIZE: usize = 4;

fn manager(num_blocks: usize) -> BlockManager {
    BlockManager::new(ManagerConfig::new(num_blocks, SIZE)).unwrap()
}

fn chain(from: u32, len: usize) -> TokenChain {
    let mut chain = TokenChain::new(&BlockHasher::new(SIZE), ExtraKeys::default());
    chain.extend(&(from..from + len as u32).collect::<Vec<_>>());
    chain
}

/// Admits and registers the first `len` tokens of a request. Returns its sequence and the number of cached tokens.
fn run(manager: &mut BlockManager, chain: &TokenChain, len: usize) -> (SeqId, usize) {
    let hit = manager.lookup(chain);
    let want = Admission { up_to_len: len, ..Admission::default() };
    let seq = manager.admit(chain, &hit, want).unwrap();
    manager.register(seq, chain, len).unwrap();
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

/// A request of 12 tokens whose first 6 run, and the step behind that, with the other 6 and with another request of the
/// same tokens.
fn two_steps() -> (BlockManager, TokenChain, SeqId, SeqId) {
    let (mut manager, chain) = (manager(12), chain(0, 12));
    let (first, _) = run(&mut manager, &chain, 6);
    manager.begin_step_ahead().unwrap();
    manager.reserve(first, 12).unwrap();
    manager.register(first, &chain, 12).unwrap();
    let (second, cached) = run(&mut manager, &chain, 12);
    assert_eq!(cached, 8, "what both steps compute can be hit");
    (manager, chain, first, second)
}

#[test]
fn steps_are_committed_in_their_order() {
    let (mut manager, chain, first, second) = two_steps();
    assert_eq!((table(&manager, first), table(&manager, second)), (vec![1, 2, 3], vec![1, 2, 4]));
    manager.commit_step();
    manager.commit_step();
    assert_eq!(manager.abandon_step(), [], "no step is open");
    manager.free(first).unwrap();
    manager.free(second).unwrap();
    assert_eq!(manager.lookup(&chain).tokens, 8);
    assert_eq!(hashed(&manager), [1, 2, 3, 4], "block 4 is a duplicate of block 3");
    manager.check_invariants().unwrap();
}

#[test]
fn the_step_ahead_is_abandoned_alone() {
    let (mut manager, chain, first, second) = two_steps();
    assert_eq!(manager.abandon_step(), [second]);
    assert_eq!(table(&manager, first), [1, 2], "blocks of the running step stay");
    assert_eq!((hashed(&manager), free_list(&manager)[..2].to_vec()), (vec![1], vec![3, 4]));
    manager.commit_step();
    assert_eq!(manager.lookup(&chain).tokens, 4);
    manager.free(first).unwrap();
    manager.check_invariants().unwrap();
}

#[test]
fn if_the_running_step_fails_both_are_abandoned() {
    let (mut manager, chain, first, second) = two_steps();
    assert_eq!(manager.abandon_step(), [second]);
    assert_eq!(manager.abandon_step(), [first]);
    assert_eq!(free_list(&manager), (1..12).collect::<Vec<_>>());
    assert_eq!((hashed(&manager), manager.lookup(&chain).tokens), (vec![], 0));
    manager.check_invariants().unwrap();
}

#[test]
fn the_step_ahead_can_be_abandoned_when_the_running_one_was_committed() {
    let (mut manager, _, first, second) = two_steps();
    manager.commit_step();
    assert_eq!(manager.abandon_step(), [second]);
    assert_eq!((table(&manager, first), hashed(&manager)), (vec![1, 2], vec![1]));
    manager.check_invariants().unwrap();
}

#[test]
fn a_step_ahead_without_operations_is_a_step() {
    let (mut manager, chain) = (manager(12), chain(0, 8));
    let (seq, _) = run(&mut manager, &chain, 8);
    manager.begin_step_ahead().unwrap();
    assert_eq!(manager.abandon_step(), [], "the step ahead");
    assert_eq!(table(&manager, seq), [1, 2], "the running step is not abandoned");
    manager.begin_step_ahead().unwrap();
    manager.commit_step();
    assert_eq!(manager.abandon_step(), [], "the running step was committed");
    assert_eq!(hashed(&manager), [1, 2]);
}

#[test]
fn sequences_of_the_running_step_keep_their_blocks() {
    let (mut manager, _, first, second) = two_steps();
    let running = |result: Result<(), KvError>| {
        let error = result.unwrap_err().to_string();
        assert!(error.ends_with("is in a step that runs: commit or abandon it first"), "{error}");
    };
    running(manager.free(first).map(drop));
    running(manager.rollback(first, 8).map(drop));
    assert_eq!(manager.free(second).unwrap(), [], "it is only in the step ahead");
    manager.commit_step();
    assert_eq!(manager.free(first).unwrap(), [], "its row of the step ahead is withdrawn");
    assert_eq!(hashed(&manager), [1]);
    manager.check_invariants().unwrap();
}

#[test]
fn at_most_two_steps_are_open() {
    let (mut manager, ..) = two_steps();
    let error = manager.begin_step_ahead().unwrap_err();
    assert!(error.to_string().contains("two steps are open"), "{error}");
}

/// Looks on.
struct Nothing;

impl BlockObserver for Nothing {
    fn observe(&mut self, _: &BlockOp<'_>) {}
}

#[test]
fn an_observer_gets_one_step_after_the_other() {
    let mut manager = manager(12);
    assert!(!manager.is_observed());
    manager.set_observer(Some(Box::new(Nothing))).unwrap();
    assert!(manager.is_observed());
    let error = manager.begin_step_ahead().unwrap_err();
    assert!(error.to_string().contains("one step after the other"), "{error}");
}

#[test]
fn each_step_publishes_its_own_blocks() {
    let stream = EventStream::new("coder", 100);
    let mut heard = stream.subscribe(None).unwrap();
    let config = ManagerConfig { events: Some(stream), ..ManagerConfig::new(12, SIZE) };
    let (mut manager, chain) = (BlockManager::new(config).unwrap(), chain(0, 12));
    let mut stored = || {
        let batches = std::iter::from_fn(|| heard.try_recv().unwrap());
        let events: Vec<_> = batches.flat_map(|batch| batch.events.clone()).collect();
        let hashes = events.into_iter().map(|event| match event {
            KvEvent::BlockStored { block_hashes, .. } => block_hashes,
            other => panic!("{other:?}"),
        });
        hashes.flatten().collect::<Vec<_>>()
    };
    let (seq, _) = run(&mut manager, &chain, 5);
    manager.begin_step_ahead().unwrap();
    manager.reserve(seq, 12).unwrap();
    manager.register(seq, &chain, 8).unwrap();
    manager.commit_step();
    assert_eq!(stored(), chain.hashes()[..1]);
    manager.begin_step_ahead().unwrap();
    manager.register(seq, &chain, 12).unwrap();
    assert_eq!(manager.abandon_step(), []);
    assert_eq!(stored(), []);
    manager.commit_step();
    assert_eq!(stored(), chain.hashes()[1..2]);
    manager.commit_step();
    assert_eq!(stored(), [], "what was abandoned is not published");
}

/// Operation of a random run.
#[derive(Clone, Debug)]
enum Op {
    Ahead,
    Commit,
    Abandon,
    /// Admits a request with one of few prompts.
    Admit(usize),
    /// The n-th sequence computes so many tokens more.
    Grow(usize, usize),
    Free(usize),
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let op = prop_oneof![
        Just(Op::Ahead),
        Just(Op::Commit),
        Just(Op::Abandon),
        (0..3usize).prop_map(Op::Admit),
        (0..8usize, 1..9usize).prop_map(|(n, tokens)| Op::Grow(n, tokens)),
        (0..8usize).prop_map(Op::Free),
    ];
    prop::collection::vec(op, 1..60)
}

/// A live sequence: its prompt, and how many tokens it has in committed steps, with the running one, and in all.
struct Live {
    seq: SeqId,
    prompt: usize,
    committed: usize,
    running: usize,
    all: usize,
}

proptest! {
    /// When no step is open, tables have the blocks of committed steps, and what is cached was computed.
    #[test]
    fn what_is_left_is_what_was_committed(ops in ops()) {
        let mut manager = manager(24);
        let chains: Vec<_> = (0..3).map(|prompt| chain(100 * prompt, 30)).collect();
        let (mut live, mut ahead): (Vec<Live>, bool) = (Vec::new(), false);
        // Number of tokens of each prompt that were computed in a committed step.
        let mut computed = [0; 3];
        let ops = ops.into_iter().chain([Op::Abandon, Op::Abandon]);
        for op in ops {
            match op {
                Op::Ahead if manager.begin_step_ahead().is_ok() => {
                    ahead = true;
                    live.iter_mut().for_each(|one| one.running = one.all);
                }
                Op::Ahead => prop_assert!(ahead),
                Op::Commit => {
                    manager.commit_step();
                    for one in &mut live {
                        one.committed = if ahead { one.running } else { one.all };
                        computed[one.prompt] = computed[one.prompt].max(one.committed);
                    }
                    ahead = false;
                }
                Op::Abandon => {
                    let gone = manager.abandon_step();
                    live.retain(|one| !gone.contains(&one.seq));
                    for one in &mut live {
                        one.all = if ahead { one.running } else { one.committed };
                    }
                    ahead = false;
                }
                Op::Admit(prompt) => {
                    let chain = &chains[prompt];
                    let hit = manager.lookup(chain);
                    let all = (hit.tokens + 3).min(chain.len());
                    let want = Admission { up_to_len: all, ..Admission::default() };
                    if let Ok(seq) = manager.admit(chain, &hit, want) {
                        manager.register(seq, chain, all).unwrap();
                        live.push(Live { seq, prompt, committed: 0, running: 0, all });
                    }
                }
                Op::Grow(n, tokens) => {
                    let Some(one) = live.get_mut(n) else { continue };
                    let all = (one.all + tokens).min(30);
                    if manager.reserve(one.seq, all).is_ok() {
                        manager.register(one.seq, &chains[one.prompt], all).unwrap();
                        one.all = all;
                    }
                }
                Op::Free(n) => {
                    let Some(seq) = live.get(n).map(|one| one.seq) else { continue };
                    if let Ok(unfounded) = manager.free(seq) {
                        live.retain(|one| one.seq != seq && !unfounded.contains(&one.seq));
                    }
                }
            }
            manager.check_invariants().map_err(TestCaseError::fail)?;
        }
        for one in &live {
            let blocks = one.committed.div_ceil(SIZE);
            prop_assert_eq!(manager.table(one.seq).unwrap().blocks().len(), blocks);
        }
        for (chain, computed) in chains.iter().zip(computed) {
            prop_assert!(manager.lookup(chain).tokens <= computed);
        }
    }
}
