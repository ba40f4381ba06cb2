//! The same schedule, the same blocks: runs of vLLM 0.32.0, replayed on the manager.
//!
//! The recordings (fixtures/kv-traces, whose README says how they were made) tell who ran in each
//! step with how many tokens, and who was preempted. Which blocks that takes, which it finds in the
//! cache, and in which order they come back must be what it was there, to the number.

use std::collections::{HashMap, VecDeque};
use std::path::PathBuf;

use l3_paged_kv::{
    Admission, BlockHasher, BlockId, BlockManager, ExtraKeys, KvError, ManagerConfig, SeqId,
    TokenChain,
};
use serde::Deserialize;

#[derive(Deserialize)]
struct Trace {
    pool: Pool,
    requests: Vec<Request>,
    steps: Vec<Step>,
}

#[derive(Deserialize)]
struct Pool {
    block_size: usize,
    num_blocks: usize,
    tokens_per_step: usize,
    prefix_caching: bool,
}

#[derive(Deserialize)]
struct Request {
    id: String,
    prompt: Vec<u32>,
    output: Vec<u32>,
    lora: Option<(String, String)>,
    cache_salt: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Step {
    aborted: Vec<String>,
    scheduled: Vec<(String, usize, usize)>,
    preempted: VecDeque<String>,
    resumed: Vec<String>,
    cached: HashMap<String, usize>,
    new_blocks: HashMap<String, Vec<BlockId>>,
    running: Vec<String>,
    free: usize,
    sampled: Option<Vec<String>>,
    finished: Vec<String>,
    free_end: usize,
    free_list_end: Option<Vec<BlockId>>,
    hashed_end: Option<Vec<BlockId>>,
}

/// A request, as far as blocks are concerned.
struct Live {
    chain: TokenChain,
    seq: Option<SeqId>,
    computed: usize,
    to_come: VecDeque<u32>,
}

struct Replay {
    name: String,
    step: usize,
    tokens_per_step: usize,
    manager: BlockManager,
    requests: HashMap<String, Live>,
    running: Vec<String>,
}

impl Replay {
    fn new(name: &str, pool: &Pool, requests: Vec<Request>) -> Self {
        let mut config = ManagerConfig::new(pool.num_blocks, pool.block_size);
        config.prefix_caching = pool.prefix_caching;
        let hasher = BlockHasher::new(pool.block_size);
        let live = |request: Request| {
            let keys = ExtraKeys { lora: request.lora, cache_salt: request.cache_salt };
            let mut chain = TokenChain::new(&hasher, keys);
            chain.extend(&request.prompt);
            (request.id, Live { chain, seq: None, computed: 0, to_come: request.output.into() })
        };
        Self {
            name: name.to_owned(),
            step: 0,
            tokens_per_step: pool.tokens_per_step,
            manager: BlockManager::new(config).unwrap(),
            requests: requests.into_iter().map(live).collect(),
            running: Vec::new(),
        }
    }

    /// `assert_eq` that says where.
    fn same<T: PartialEq + std::fmt::Debug>(&self, got: T, expected: T, what: &str) {
        assert!(
            got == expected,
            "{}, step {}: {what}\n  expected  {expected:?}\n  got       {got:?}",
            self.name,
            self.step
        );
    }

    fn free(&mut self, id: &str) {
        // Who was aborted before being admitted held nothing.
        let Some(request) = self.requests.get_mut(id) else { return };
        request.computed = 0;
        if let Some(seq) = request.seq.take() {
            let unfounded = self.manager.free(seq).unwrap();
            self.same(unfounded.len(), 0, &format!("sequences that go with {id}"));
        }
        self.running.retain(|running| running != id);
    }

    /// Room for a running request's next tokens, over the bodies of the step's victims if need be.
    /// `false`: it was a victim itself.
    fn advance(&mut self, id: &str, tokens: usize, step: &mut Step) -> bool {
        let recorded = step.new_blocks.get(id).cloned().unwrap_or_default();
        loop {
            let request = &self.requests[id];
            let (seq, up_to) = (request.seq.unwrap(), request.computed + tokens);
            match self.manager.reserve(seq, up_to) {
                Ok(new) => {
                    let new = new.to_vec();
                    if step.scheduled.iter().any(|(scheduled, ..)| scheduled == id) {
                        self.same(new, recorded, &format!("blocks appended for {id}"));
                    }
                    self.manager.register(seq, &self.requests[id].chain, up_to).unwrap();
                    return true;
                }
                Err(KvError::NoFreeBlocks { .. }) => {
                    let victim = step.preempted.pop_front();
                    let victim = victim.unwrap_or_else(|| {
                        panic!(
                            "{}, step {}: no room for {id}, and nobody to preempt",
                            self.name, self.step
                        )
                    });
                    self.free(&victim);
                    if victim == id {
                        return false;
                    }
                }
                Err(other) => panic!("{}, step {}: {other}", self.name, self.step),
            }
        }
    }

    /// Those that run already, in the order in which they were admitted.
    fn run_running(&mut self, step: &mut Step) {
        let mut budget = self.tokens_per_step;
        for id in self.running.clone() {
            if !self.running.contains(&id) {
                continue;
            }
            let request = &self.requests[&id];
            let planned = step.scheduled.iter().find(|(scheduled, ..)| *scheduled == id);
            let tokens = match planned {
                Some((_, computed, tokens)) => {
                    self.same(
                        request.computed,
                        *computed,
                        &format!("tokens of {id} computed before"),
                    );
                    *tokens
                }
                // A victim whose turn comes before it is one: what it got is taken back later.
                None if step.preempted.contains(&id) => {
                    (request.chain.len() - request.computed).min(budget)
                }
                None => continue,
            };
            if self.advance(&id, tokens, step) {
                budget -= tokens;
                if planned_tokens(step, &id).is_some() {
                    self.requests.get_mut(&id).unwrap().computed += tokens;
                }
            }
        }
        self.same(step.preempted.len(), 0, "preempted in the recording, and needless here");
    }

    fn admit(&mut self, id: &str, computed: usize, tokens: usize, step: &Step) {
        let request = &self.requests[id];
        let hit = self.manager.lookup(&request.chain);
        self.same(hit.tokens, step.cached[id], &format!("tokens of {id} found in the cache"));
        self.same(hit.tokens, computed, &format!("tokens of {id} computed before"));
        let want = Admission {
            up_to_len: hit.tokens + tokens,
            must_fit_len: request.chain.len(),
            keep_free: 0,
            resumed: step.resumed.iter().any(|resumed| resumed == id),
        };
        let seq = self.manager.admit(&request.chain, &hit, want).unwrap_or_else(|error| {
            panic!("{}, step {}: {id} was admitted there, and here: {error}", self.name, self.step)
        });
        let table = self.manager.table(seq).unwrap().blocks().to_vec();
        self.same(Some(&table), step.new_blocks.get(id), &format!("the table of {id}"));
        self.manager.register(seq, &request.chain, want.up_to_len).unwrap();
        let request = self.requests.get_mut(id).unwrap();
        (request.seq, request.computed) = (Some(seq), want.up_to_len);
        self.running.push(id.to_owned());
    }

    fn step(&mut self, mut step: Step) {
        for id in &step.aborted {
            self.free(id);
        }
        self.run_running(&mut step);
        for (id, computed, tokens) in &step.scheduled {
            if self.requests[id].seq.is_none() {
                self.admit(id, *computed, *tokens, &step);
            }
        }
        self.same(self.manager.num_free(), step.free, "free blocks after planning");
        self.same(&self.running, &step.running, "running requests");
        self.manager.commit_step();

        let all = || step.scheduled.iter().map(|(id, ..)| id.clone()).collect();
        for id in step.sampled.clone().unwrap_or_else(all) {
            let request = self.requests.get_mut(&id).unwrap();
            let token = request.to_come.pop_front().unwrap();
            request.chain.push(token);
        }
        for id in &step.finished {
            self.free(id);
        }
        self.same(self.manager.num_free(), step.free_end, "free blocks at the end");
        let free: Vec<BlockId> = self.manager.pool().free_list().iter().collect();
        if let Some(expected) = step.free_list_end {
            self.same(free, expected, "the free list at the end");
        }
        if let Some(expected) = step.hashed_end {
            let all = 1..self.manager.config().num_blocks as BlockId;
            let hashed: Vec<_> = all.filter(|b| self.manager.cache().is_cached(*b)).collect();
            self.same(hashed, expected, "blocks with a hash at the end");
        }
        self.step += 1;
    }
}

fn planned_tokens(step: &Step, id: &str) -> Option<usize> {
    step.scheduled.iter().find(|(scheduled, ..)| scheduled == id).map(|(_, _, tokens)| *tokens)
}

/// Replays a recording; the steps and preemptions it had.
fn replay(name: &str) -> (usize, usize) {
    let root = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../fixtures/kv-traces"));
    let text = std::fs::read_to_string(root.join(format!("{name}.json"))).unwrap();
    let trace: Trace = serde_json::from_str(&text).unwrap();
    let counts = (trace.steps.len(), trace.steps.iter().map(|s| s.preempted.len()).sum());
    let mut replay = Replay::new(name, &trace.pool, trace.requests);
    for step in trace.steps {
        replay.step(step);
        if let Err(what) = replay.manager.check_invariants() {
            panic!("{name}, after step {}: {what}", replay.step - 1);
        }
    }
    counts
}

#[test]
fn mixed_steps_take_the_blocks_that_vllm_takes() {
    for name in ["three_prompts_5_7_3_bs4", "three_requests_8_32_5", "budget_exhaustion"] {
        assert!(replay(name).0 > 5, "{name} is too short to show anything");
    }
}

#[test]
fn a_fully_cached_prompt_computes_its_last_block_again() {
    replay("full_hit_exact_multiple");
}

#[test]
fn requests_of_one_step_share_what_it_computes() {
    replay("shared_prefix_concurrent");
}

#[test]
fn adapters_keep_apart() {
    replay("lora_keys");
}

#[test]
fn the_least_recently_used_block_is_evicted_tail_first() {
    replay("eviction_lru");
}

#[test]
fn aborts_give_back_what_was_held() {
    replay("aborts");
}

#[test]
fn preemption_by_order_of_arrival() {
    assert_eq!(replay("preempt_fcfs_basic").1, 2, "preemptions replayed");
}

#[test]
fn preemption_by_priority() {
    replay("priority_order");
    assert_eq!(replay("priority_preempt_lowest").1, 2, "preemptions replayed");
}

#[test]
fn a_small_pool_under_random_load() {
    assert_eq!(replay("random_fcfs_small_pool"), (170, 12), "steps and preemptions replayed");
}

#[test]
fn a_small_pool_under_random_load_with_priorities() {
    assert_eq!(replay("random_priority_small_pool"), (170, 14), "steps and preemptions replayed");
}
