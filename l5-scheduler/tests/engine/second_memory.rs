//! A memory behind the pool: what the connector knows, and what the executor moves and reports. Blocks are found by
//! their hashes.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use l3_paged_kv::{BlockHash, BlockHasher, ExtraKeys, TokenChain};
use l5_scheduler::sim::{FakeModel, Script};
use l5_scheduler::{
    Caps, EngineCore, Executor, FinishReason, Job, KvCompletion, KvConnector, MalformedOutput,
    Matched, Note, PolicyContext, Request, RequestId, RequestView, Retain, Retention, Scheduler,
    SchedulerConfig, StepHandle, StepOp, StepOutput, StepView, Time,
};
use proptest::prelude::*;

const BLOCK: usize = 4;

/// What the memory does with the operations that are begun.
#[derive(Clone, Copy, Debug)]
struct Habits {
    /// Number of polls after which an operation ends.
    delay: usize,
    /// Number of questions about a request before the answer is known.
    lookups: usize,
    /// Every so many loads, the last block is missing; 0: never.
    partial: usize,
    /// Every so many loads, nothing comes; 0: never.
    lost: usize,
}

/// Blocks that are stored, and operations that are under way.
#[derive(Default)]
struct Memory {
    stored: HashSet<BlockHash>,
    /// Completions, and the polls that are left until they are reported.
    under_way: Vec<(usize, KvCompletion)>,
    questions: HashMap<RequestId, usize>,
    loads: usize,
    loaded_tokens: usize,
}

/// The connector's half.
struct Connector(Arc<Mutex<Memory>>, Habits);

impl KvConnector for Connector {
    fn matched_tokens(&mut self, id: RequestId, chain: &TokenChain, from: usize) -> Matched {
        let mut memory = self.0.lock().unwrap();
        let asked = memory.questions.entry(id).or_default();
        *asked += 1;
        if *asked <= self.1.lookups {
            return Matched::AskAgain;
        }
        let known = |hash: &&BlockHash| memory.stored.contains(*hash);
        let behind = chain.hashes().iter().skip(from / BLOCK);
        Matched::Tokens(behind.take_while(known).count() * BLOCK)
    }
}

/// The executor's half.
struct Remote {
    model: FakeModel<Counting>,
    memory: Arc<Mutex<Memory>>,
    habits: Habits,
    /// Chunks on their way, of which each poll ends one; `usize::MAX`: none ends.
    unwritten: usize,
}

impl Executor for Remote {
    type Job = Counting;
    type Error = MalformedOutput;

    fn caps(&self) -> Caps {
        Caps { can_store: true, ..self.model.caps() }
    }

    fn begin(&mut self, id: RequestId, job: Counting) {
        self.model.begin(id, job);
    }

    fn collect(
        &mut self,
        handle: StepHandle,
        step: &StepView<'_>,
        out: &mut StepOutput,
    ) -> Result<(), MalformedOutput> {
        let mut memory = self.memory.lock().unwrap();
        let Habits { delay, partial, lost, .. } = self.habits;
        for op in &step.step().ops {
            let completion = match op {
                StepOp::Load { id, from, to, blocks, hashes } => {
                    assert_eq!(blocks.len() * BLOCK, to - from, "blocks of a load");
                    assert!(hashes.iter().all(|hash| memory.stored.contains(hash)), "{hashes:?}");
                    memory.loads += 1;
                    let every = |n: usize| n > 0 && memory.loads.is_multiple_of(n);
                    let missing =
                        if every(lost) { *to } else { usize::from(every(partial)) * BLOCK };
                    let tokens = to - missing;
                    memory.loaded_tokens += tokens.saturating_sub(*from);
                    KvCompletion::Loaded { id: *id, tokens }
                }
                StepOp::Store { lease, blocks, hashes, .. } => {
                    assert_eq!(blocks.len(), hashes.len(), "blocks of a store");
                    memory.stored.extend(hashes);
                    KvCompletion::Stored { lease: *lease }
                }
                StepOp::WriteBack { .. } => panic!("this retention writes nothing back"),
            };
            memory.under_way.push((delay, completion));
        }
        drop(memory);
        self.model.collect(handle, step, out)
    }

    fn num_unwritten(&self) -> usize {
        self.unwritten
    }

    fn poll(&mut self, completed: &mut Vec<KvCompletion>) {
        if self.unwritten < usize::MAX {
            self.unwritten = self.unwritten.saturating_sub(1);
        }
        let mut memory = self.memory.lock().unwrap();
        memory.under_way.retain_mut(|(left, completion)| {
            let ended = *left == 0;
            *left = left.saturating_sub(1);
            if ended {
                completed.push(*completion);
            }
            !ended
        });
    }

    fn end(&mut self, id: RequestId, reason: FinishReason) {
        self.model.end(id, reason);
    }
}

/// Output that counts on from a number.
struct Counting(u32);

impl Script for Counting {
    fn token(&self, n: usize) -> Option<u32> {
        Some(self.0 + n as u32)
    }
}

/// Stores what jobs leave.
struct Storing;

impl Retention for Storing {
    fn retain(
        &mut self,
        finished: &RequestView<'_>,
        _: Option<&Note>,
        _: &PolicyContext<'_>,
    ) -> Retain {
        if finished.job().is_some() { Retain::Offload } else { Retain::Free }
    }
}

/// An engine with a second memory, a clock of its own (a step a millisecond), and what became of requests.
struct World {
    core: EngineCore<Remote>,
    memory: Arc<Mutex<Memory>>,
    steps: u32,
    tokens: HashMap<u64, Vec<u32>>,
    ends: HashMap<u64, (Vec<u32>, FinishReason)>,
}

impl World {
    /// A pool of so many blocks, and a memory of these habits.
    fn new(blocks: usize, habits: Habits) -> Self {
        let memory = Arc::new(Mutex::new(Memory::default()));
        let config = SchedulerConfig { max_num_seqs: 4, ..SchedulerConfig::new(blocks + 1, BLOCK) };
        let scheduler = Scheduler::new(config).unwrap().with_retention(Box::new(Storing));
        let scheduler = scheduler.with_kv_connector(Box::new(Connector(memory.clone(), habits)));
        let remote =
            Remote { model: FakeModel::default(), memory: memory.clone(), habits, unwritten: 0 };
        let core = EngineCore::new(scheduler, remote);
        Self { core, memory, steps: 0, tokens: HashMap::new(), ends: HashMap::new() }
    }

    /// The memory has these tokens.
    fn store(&mut self, tokens: &[u32]) {
        let mut chain = TokenChain::new(&BlockHasher::new(BLOCK), ExtraKeys::default());
        chain.extend(tokens);
        self.memory.lock().unwrap().stored.extend(chain.hashes());
    }

    fn add(&mut self, (request, job): (Request, Counting)) {
        self.core.add_request(request, job).unwrap();
    }

    /// Runs a step. Returns its number of rows.
    fn step(&mut self) -> usize {
        let result = self.core.step_at(Time(f64::from(self.steps) * 1e-3)).unwrap();
        self.steps += 1;
        for (id, new) in result.new_tokens() {
            self.tokens.entry(id.0).or_default().extend(new);
        }
        for (id, reason) in &result.finished {
            let tokens = self.tokens.remove(&id.0).unwrap_or_default();
            assert!(self.ends.insert(id.0, (tokens, *reason)).is_none(), "{id} ended twice");
        }
        result.scheduled
    }

    /// Runs until no request is left and nothing is under way. All blocks are free then.
    fn run(&mut self) {
        for _ in 0..5000 {
            if !self.core.has_unfinished() && !self.core.scheduler().leases().is_storing() {
                let blocks = self.core.scheduler().blocks();
                blocks.check_invariants().unwrap();
                assert_eq!(blocks.num_free(), blocks.config().num_blocks - 1, "free blocks");
                return;
            }
            self.step();
        }
        panic!("it does not end: {:?}", self.core.scheduler());
    }
}

/// A turn of a job, whose prompt is that of its family.
fn turn(id: u64, family: u32, len: usize, max_tokens: usize) -> (Request, Counting) {
    let prompt = (0..len as u32).map(|i| 1000 * family + i).collect();
    let job = Some(Job { id: format!("job {family}"), last_step: false });
    let id = RequestId(id);
    let request = Request { id, prompt, max_tokens, job, ..Request::default() };
    (request, Counting(1000 * family + 500))
}

const QUICK: Habits = Habits { delay: 0, lookups: 0, partial: 0, lost: 0 };

#[test]
fn what_was_stored_is_loaded_when_the_pool_has_lost_it() {
    let mut world = World::new(8, Habits { delay: 3, ..QUICK });
    // Between the turns of the first job, another one needs the whole pool, and what the first left is evicted.
    for turn in [turn(0, 1, 17, 2), turn(1, 2, 31, 1), turn(2, 1, 17, 2)] {
        world.add(turn);
        world.run();
    }
    assert_eq!(world.ends[&2], (vec![1500, 1501], FinishReason::Length));
    assert_eq!(world.memory.lock().unwrap().loaded_tokens, 16, "tokens that were loaded");
    assert_eq!(world.core.scheduler().stats().scheduled_tokens, 18 + 31 + 2, "tokens computed");
}

#[test]
fn a_memory_that_never_answers_stalls_no_step() {
    let mut world = World::new(20, Habits { lookups: usize::MAX, ..QUICK });
    (0..6).for_each(|id| world.add(turn(id, id as u32, 10, 3)));
    world.run();
    assert!(world.ends.values().all(|end| end.0.len() == 3), "{:?}", world.ends);
}

#[test]
fn a_slow_load_stops_no_other_request() {
    let mut world = World::new(20, Habits { delay: 50, ..QUICK });
    world.store(&(1000..1008).collect::<Vec<u32>>());
    world.add(turn(0, 1, 10, 3));
    world.add(turn(1, 2, 10, 3));
    (0..4).for_each(|_| _ = world.step());
    assert_eq!(world.ends.keys().collect::<Vec<_>>(), [&1], "ends after four steps");
    world.run();
    assert_eq!(world.ends[&0].0, [1500, 1501, 1502]);
    assert_eq!(world.memory.lock().unwrap().loaded_tokens, 8);
}

#[test]
fn an_abort_during_a_load_waits_for_its_end() {
    let mut world = World::new(20, Habits { delay: 5, ..QUICK });
    world.store(&(1000..1008).collect::<Vec<u32>>());
    world.add(turn(0, 1, 10, 3));
    world.step();
    assert!(world.core.abort(RequestId(0)));
    world.step();
    assert!(world.ends.is_empty(), "its blocks are written to");
    world.run();
    assert_eq!(world.ends[&0], (vec![], FinishReason::Aborted));
}

#[test]
fn a_loop_may_wait_while_requests_look_up_load_and_store() {
    let mut world = World::new(20, Habits { delay: 2, lookups: 2, ..QUICK });
    world.store(&(1000..1008).collect::<Vec<u32>>());
    assert_eq!(world.core.time_to_deadline(), None, "there is nothing to do");
    world.add(turn(0, 1, 10, 2));
    let mut steps = Vec::new();
    while world.core.has_unfinished() || world.core.scheduler().leases().is_storing() {
        let rows = world.step();
        let waits = world.core.time_to_deadline();
        assert!(waits.is_none_or(|wait| wait <= Duration::from_millis(1)), "{waits:?}");
        steps.push((rows, waits.is_some()));
    }
    let (idle, row) = ((0, true), (1, false));
    // Two questions without an answer; a load that is reported after two polls; a prompt and a token; a store.
    let want = [idle, idle, idle, idle, idle, row, (1, true), idle, idle, idle];
    assert_eq!(
        steps[..want.len()],
        want,
        "rows of each step, and whether a loop may wait behind it"
    );
    assert_eq!(world.core.time_to_deadline(), None, "all is stored");
    assert_eq!(
        world.core.scheduler().stats().steps,
        steps.len() as u64,
        "steps without rows count"
    );
}

#[test]
fn a_flush_ends_the_stores_and_waits_for_what_is_on_its_way() {
    let mut world = World::new(20, Habits { delay: 3, ..QUICK });
    world.add(turn(0, 1, 17, 2));
    while world.core.has_unfinished() {
        world.step();
    }
    world.core.executor_mut().unwritten = 7;
    assert!(world.core.scheduler().leases().is_storing(), "its blocks are not stored yet");
    assert_eq!(world.core.flush(Duration::from_secs(60)).unwrap(), 0);
    assert_eq!(world.memory.lock().unwrap().stored.len(), 4, "blocks of 18 tokens");
    assert!(world.core.scheduler().leases().is_empty());
}

#[test]
fn a_flush_of_a_memory_that_never_ends_gives_up_after_its_time() {
    let mut world = World::new(20, QUICK);
    world.core.executor_mut().unwritten = usize::MAX;
    let began = std::time::Instant::now();
    assert_eq!(world.core.flush(Duration::from_millis(30)).unwrap(), usize::MAX);
    assert!(began.elapsed() >= Duration::from_millis(30));
}

proptest! {
    /// Whatever the memory does, each request has the output that it has without one, and all blocks come back.
    #[test]
    fn requests_have_their_tokens_whatever_the_memory_does(
        blocks in 12usize..40,
        (delay, lookups, partial, lost) in (0usize..6, 0usize..4, 0usize..4, 0usize..4),
        turns in prop::collection::vec((0u32..4, 1usize..40, 1usize..12, 0usize..12), 1..12),
        aborted in prop::collection::vec(0u64..12, 0..3),
    ) {
        let mut world = World::new(blocks, Habits { delay, lookups, partial, lost });
        let mut want = Vec::new();
        for (id, (family, len, max_tokens, steps)) in (0..).zip(turns) {
            world.add(turn(id, family, len, max_tokens));
            // The model's length is that of the pool.
            let max_tokens = max_tokens.min(BLOCK * blocks - len);
            let tokens = (0..max_tokens as u32).map(|i| 1000 * family + 500 + i);
            want.push(tokens.collect::<Vec<_>>());
            (0..steps).for_each(|_| _ = world.step());
            if aborted.contains(&id) {
                world.core.abort(RequestId(id));
            }
        }
        world.run();
        prop_assert_eq!(world.ends.len(), want.len());
        for (id, want) in want.iter().enumerate() {
            let (tokens, reason) = &world.ends[&(id as u64)];
            match reason {
                FinishReason::Length => prop_assert_eq!(tokens, want, "request {}", id),
                _ => prop_assert!(want.starts_with(tokens), "request {}: {:?}", id, tokens),
            }
        }
    }
}
