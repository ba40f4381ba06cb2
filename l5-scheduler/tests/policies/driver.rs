//! A scheduler with a fake model: the next token follows from those before it, and so do the contents of a slot. A
//! block that does not hold what it should is therefore found, however it came to be read.

use std::collections::{HashMap, HashSet, VecDeque};

use l3_paged_kv::{BlockHash, BlockHasher, BlockId, ExtraKeys, TokenChain};
use l5_scheduler::{
    Admitted, Caps, FinishReason, KvConnector, LeaseId, Note, Request, RequestId, RequestView,
    Resolved, Retention, RowView, Scheduler, SchedulerConfig, Seat, StepOp, StepOutput, Time,
};

/// The next token of a text; few different ones, so that texts often go on alike.
pub fn next_token(tokens: &[u32]) -> u32 {
    let sum: u32 = tokens.iter().zip(1..).map(|(token, n)| token * 7 + n).sum();
    sum % 5
}

/// Drafts behind a text: none to four of them, of which most are what the model will say.
pub fn drafts_behind(tokens: &[u32]) -> Vec<u32> {
    let mut text = tokens.to_vec();
    let seed = tokens.iter().zip(3..).map(|(token, n)| token * 5 + n).sum::<u32>();
    let draft = |n: u32| {
        let wrong = u32::from((seed + 7 * n).is_multiple_of(4));
        text.push((next_token(&text) + wrong) % 5);
        text[text.len() - 1]
    };
    (0..seed % 5).map(draft).collect()
}

/// What the model says behind a text when it verifies drafts: as many as are right, and one token more.
pub fn verified(tokens: &[u32], drafts: &[u32]) -> Vec<u32> {
    let mut text = tokens.to_vec();
    text.push(next_token(&text));
    for draft in drafts {
        if text.last() != Some(draft) {
            break;
        }
        text.push(next_token(&text));
    }
    text.split_off(tokens.len())
}

/// What a slot holds after a text's tokens were computed: everything before it is in it.
fn memories(tokens: &[u32]) -> Vec<u64> {
    let mut memory = 14_695_981_039_346_656_037u64;
    let mut next = |token: &u32| {
        memory = (memory ^ u64::from(token + 1)).wrapping_mul(1_099_511_628_211);
        memory
    };
    tokens.iter().map(&mut next).collect()
}

/// Notes what the last slot of each full block of a request's text holds, by the block's hash.
fn note_contents(
    contents: &mut HashMap<BlockHash, u64>,
    block_size: usize,
    request: &RequestView<'_>,
    text: &[u32],
) {
    let lora = request.adapter().map(|adapter| (adapter.name.clone(), adapter.path.clone()));
    let keys = ExtraKeys { lora, ..ExtraKeys::default() };
    let mut chain = TokenChain::new(&BlockHasher::new(block_size), keys);
    chain.extend(text);
    let last = memories(text).into_iter().skip(block_size - 1).step_by(block_size);
    contents.extend(chain.hashes().iter().copied().zip(last));
}

/// What happened in a step.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Happened {
    /// Rows: request id, tokens computed before, tokens of this step.
    pub rows: Vec<(u64, usize, usize)>,
    /// For each row of a request that was admitted in this step, its id and the tokens that were hit in the cache.
    pub cached: Vec<(u64, usize)>,
    pub preempted: Vec<u64>,
    pub ended: Vec<(u64, FinishReason)>,
    pub running: Vec<u64>,
    pub waiting: Vec<u64>,
    pub free: usize,
}

/// No names.
pub const NOBODY: [u64; 0] = [];

/// A request: its name, its prompt, and the most tokens of its answer.
pub fn request(id: u64, prompt: &[u32], max_tokens: usize) -> Request {
    Request { id: RequestId(id), prompt: prompt.to_vec(), max_tokens, ..Request::default() }
}

/// A prompt that shares no block with that of another name.
pub fn unique(id: u64, len: usize) -> Vec<u32> {
    let mut prompt = vec![0; len];
    prompt[0] = 1000 + id as u32;
    prompt
}

/// What a launched step has sampled for a row.
struct Sampled {
    row: usize,
    tokens: Vec<u32>,
    drafts: Vec<u32>,
    note: Option<Note>,
    fails: bool,
}

/// A step that runs.
struct Launched {
    number: u64,
    /// Slots that it writes to.
    written: HashSet<usize>,
    outputs: Vec<Sampled>,
}

pub struct Driver {
    pub scheduler: Scheduler,
    block_size: usize,
    slots: Vec<u64>,
    output: StepOutput,
    resolved: Resolved,
    /// Steps that run, the one that is due first.
    launched: VecDeque<Launched>,
    /// The token that each seat sampled last.
    newest: HashMap<Seat, u32>,
    /// Fetching that was asked for and did not end: up to which token, and into which blocks.
    pub loads: Vec<(u64, usize, Vec<BlockId>)>,
    /// Storing that was asked for and did not end.
    pub stores: Vec<LeaseId>,
    /// What each full block holds in its last slot, by its hash.
    contents: HashMap<BlockHash, u64>,
    /// Copies of blocks that were about to be overwritten, as hashes.
    pub copies: Vec<Vec<BlockHash>>,
    /// Everybody who was taken and has not ended.
    pub alive: HashSet<u64>,
    /// Tables as an executor has them that only looks at what is new: by seat, with the generation.
    mirror: HashMap<Seat, Vec<BlockId>>,
    /// A request that the model fails.
    pub fails: Option<u64>,
    /// The tool that each row calls, from here on.
    pub tool: Option<String>,
    /// The command of this tool.
    pub command: Option<String>,
}

impl Driver {
    pub fn new(config: SchedulerConfig) -> Self {
        Self::around(Scheduler::new(config).expect("the tests' configurations can be"))
    }

    pub fn with_retention(config: SchedulerConfig, retention: impl Retention + 'static) -> Self {
        let scheduler = Scheduler::new(config).expect("the tests' configurations can be");
        Self::around(scheduler.with_retention(Box::new(retention)))
    }

    pub fn with_source(mut self, source: impl KvConnector + 'static) -> Self {
        self.scheduler = self.scheduler.with_kv_connector(Box::new(source));
        self
    }

    pub fn around(mut scheduler: Scheduler) -> Self {
        scheduler.set_caps(&Caps { can_store: true, ..Caps::default() });
        let config = scheduler.config();
        let block_size = config.block_size;
        let slots = vec![0; config.num_gpu_blocks * block_size];
        Self {
            scheduler,
            block_size,
            slots,
            output: StepOutput::default(),
            resolved: Resolved::default(),
            launched: VecDeque::new(),
            newest: HashMap::new(),
            loads: Vec::new(),
            stores: Vec::new(),
            contents: HashMap::new(),
            copies: Vec::new(),
            mirror: HashMap::new(),
            alive: HashSet::new(),
            fails: None,
            tool: None,
            command: None,
        }
    }

    /// Add a request that must be taken.
    pub fn add(&mut self, request: Request) {
        let id = request.id.0;
        self.scheduler.add_request(request).expect("a request that can be completed");
        self.alive.insert(id);
    }

    /// Plan a step at a moment: who takes part and with how many tokens.
    pub fn plan(&mut self, now: f64) -> Vec<(u64, usize)> {
        let step = self.scheduler.plan(Time(now));
        step.rows.iter().map(|row| (row.id.0, row.len)).collect()
    }

    /// Run the step that is planned, in no time, and let it count.
    pub fn run(&mut self) -> Happened {
        self.run_until(self.scheduler.due().step().now.seconds())
    }

    /// Run the step that is due until a moment, and let it count.
    pub fn run_until(&mut self, now: f64) -> Happened {
        self.launch();
        let Launched { outputs, .. } = self.launched.pop_front().expect("a planned step");
        self.output.clear();
        let due = self.scheduler.due();
        for Sampled { row, tokens, drafts, note, fails } in outputs {
            // What a step samples that was planned ahead may be of no use.
            if due.step().rows[row].samples {
                self.output.push(row, &tokens, fails.then_some(FinishReason::Failed));
                self.output.propose(row, &drafts);
                if let Some(note) = note {
                    self.output.note(row, note);
                }
            }
        }
        let result = self.scheduler.resolve(&self.output, &mut self.resolved);
        result.expect("the output fits the step");
        let step = self.scheduler.due();
        let step = step.step();
        let admitted = step.rows.iter().filter(|row| row.admitted != Admitted::Before);
        let mut happened = Happened {
            cached: admitted.map(|row| (row.id.0, row.cached)).collect(),
            rows: step.rows.iter().map(|row| (row.id.0, row.computed, row.len)).collect(),
            preempted: step.preempted.iter().map(|id| id.0).collect(),
            ..Happened::default()
        };
        self.scheduler.apply(&self.resolved, Time(now));
        happened.ended = self.ended();
        happened.running = self.scheduler.running().map(|request| request.id().0).collect();
        happened.waiting = self.scheduler.waiting().map(|request| request.id().0).collect();
        happened.free = self.scheduler.blocks().num_free();
        happened
    }

    /// Plan a step behind the one that is planned, while that one runs. Returns whether it was planned.
    pub fn plan_ahead(&mut self, now: f64) -> bool {
        self.launch();
        let ahead = self.scheduler.plan_ahead(Time(now)).is_some();
        if ahead {
            assert!(self.scheduler.view().step().ops.is_empty(), "nothing is loaded or stored");
            self.launch();
        }
        ahead
    }

    /// The next step, begun and ended.
    pub fn step(&mut self, now: f64) -> Happened {
        self.plan(now);
        self.run()
    }

    /// Who ended since this was asked last. Nobody ends twice.
    pub fn ended(&mut self) -> Vec<(u64, FinishReason)> {
        let ended: Vec<_> =
            self.scheduler.take_ended().map(|(id, reason)| (id.0, reason)).collect();
        for (id, reason) in &ended {
            assert!(self.alive.remove(id), "request {id} ended ({reason}) though it was not there");
        }
        ended
    }

    /// Launch the newest step, unless that was done: the device runs it, and what it samples is kept until the step is due.
    /// The forward pass writes all rows' slots, then reads all that they attend to.
    fn launch(&mut self) {
        let view = self.scheduler.view();
        let (number, due) = (view.step().number, self.scheduler.due().step().number);
        let open = self.scheduler.is_open();
        self.launched.retain(|step| open && (step.number == number || step.number == due));
        if self.launched.iter().any(|step| step.number == number) {
            return;
        }
        for op in &view.step().ops {
            match op {
                StepOp::Load { id, to, blocks, hashes, .. } => {
                    assert_eq!(blocks.len(), hashes.len(), "blocks of a load and their names");
                    let slots = |block: &BlockId| {
                        let first = *block as usize * self.block_size;
                        first..first + self.block_size
                    };
                    let running =
                        |slot| self.launched.iter().any(|step| step.written.contains(&slot));
                    let written = blocks.iter().flat_map(slots).any(running);
                    assert!(!written, "request {id} loads where a running step writes");
                    self.loads.push((id.0, *to, blocks.clone()));
                }
                StepOp::Store { lease, blocks, hashes, .. } => {
                    assert_eq!(blocks.len(), hashes.len(), "blocks of a store and their names");
                    self.stores.push(*lease);
                }
                StepOp::WriteBack { blocks, hashes, .. } => {
                    assert_eq!(blocks.len(), hashes.len(), "blocks of a copy and their names");
                    for (block, hash) in blocks.iter().zip(hashes) {
                        let last = (*block as usize + 1) * self.block_size - 1;
                        assert_eq!(self.slots[last], self.contents[hash], "a block of a copy");
                    }
                    self.copies.push(hashes.clone());
                }
            }
        }
        let slot = |table: &l3_paged_kv::BlockTable, position: usize| {
            table.slot(position).expect("a slot for every token") as usize
        };
        let mut written = HashMap::new();
        let newest = self.newest.clone();
        // Tokens of a row's request that are known, to the host or to the device.
        let known = |row: &RowView<'_>| {
            let mut tokens = row.request.tokens().to_vec();
            if row.row.awaits {
                assert_eq!(tokens.len(), row.row.computed, "a token is awaited");
                tokens.push(newest[&row.row.seat]);
            }
            tokens
        };
        let text = |row: &RowView<'_>| {
            let known = known(row);
            [&known[..row.row.computed + row.row.fed()], row.drafts].concat()
        };
        for row in view.rows() {
            let memories = memories(&text(&row));
            for (position, memory) in memories.iter().enumerate().skip(row.row.computed) {
                let slot = slot(row.table, position);
                self.slots[slot] = *memory;
                let before = written.insert(slot, row.row.id);
                assert_eq!(before, None, "two requests write to one slot in one step");
            }
        }
        for row in view.rows() {
            let (text, size) = (text(&row), self.block_size);
            if row.row.computed / size < text.len() / size {
                note_contents(&mut self.contents, size, &row.request, &text);
            }
        }
        let mut outputs = Vec::new();
        for (n, row) in view.rows().enumerate() {
            assert_eq!(Some(row.row.seat), row.request.seat(), "{} and its row", row.row.id);
            let (table, kept) = (row.table.blocks(), row.row.blocks_before);
            let mirrored = self.mirror.entry(row.row.seat).or_default();
            assert!(kept <= mirrored.len(), "{} has kept {kept} blocks", row.row.id);
            mirrored.truncate(kept);
            mirrored.extend(table.get(kept..).expect("no more blocks kept than there are"));
            assert_eq!(mirrored, table, "the table of {}", row.row.id);
            for (position, memory) in memories(&text(&row)).iter().enumerate() {
                let read = self.slots[slot(row.table, position)];
                assert_eq!(read, *memory, "{} reads token {position}", row.row.id);
            }
            if row.row.samples {
                let known = known(&row);
                let tokens = verified(&known, row.drafts);
                self.newest.insert(row.row.seat, tokens[tokens.len() - 1]);
                let (tool, command) = (self.tool.as_ref(), self.command.clone());
                let name = |tool: &String| format!("{tool} {}", row.row.id.0);
                outputs.push(Sampled {
                    row: n,
                    fails: self.fails == Some(row.row.id.0),
                    drafts: drafts_behind(&[known, tokens.clone()].concat()),
                    note: tool.map(|tool| Note { tool: Some(name(tool)), command }),
                    tokens,
                });
            }
        }
        for (id, ..) in &self.loads {
            let written = |block: &BlockId| {
                let first = *block as usize * self.block_size;
                (first..first + self.block_size).any(|slot| written.contains_key(&slot))
            };
            let blocks = &self.loads.iter().find(|(other, ..)| other == id).expect("itself").2;
            assert!(!blocks.iter().any(written), "somebody writes where request {id} is loading");
        }
        let written = written.into_keys().collect();
        self.launched.push_back(Launched { number, written, outputs });
    }

    /// Of what is being fetched for a request, the first `tokens` tokens have come.
    pub fn arrive(&mut self, id: u64, tokens: usize) {
        let at = self.loads.iter().position(|(other, ..)| *other == id).expect("it is loading");
        let (_, to, blocks) = self.loads.remove(at);
        if let Some(request) = self.scheduler.request(RequestId(id)) {
            let memories = memories(&request.tokens()[..tokens.min(to)]);
            note_contents(&mut self.contents, self.block_size, &request, request.tokens());
            let from = to - blocks.len() * self.block_size;
            for (position, memory) in memories.iter().enumerate().skip(from) {
                let block = blocks[(position - from) / self.block_size] as usize;
                self.slots[block * self.block_size + position % self.block_size] = *memory;
            }
        }
        assert!(self.scheduler.kv_arrived(RequestId(id), tokens), "request {id} was loading");
    }

    /// What is being stored has been.
    pub fn stored(&mut self, lease: LeaseId) {
        self.stores.retain(|other| *other != lease);
        assert!(self.scheduler.kv_stored(lease), "{lease:?} was being stored");
    }

    /// The pool is in order; with nobody there, everything is free or kept.
    pub fn check(&self) {
        let blocks = self.scheduler.blocks();
        blocks.check_invariants().expect("blocks in order");
        let mut waiting = self.scheduler.waiting();
        assert!(waiting.all(|request| request.seat().is_none()), "a request that waits has a seat");
        let seats = self.scheduler.running().map(|request| request.seat().expect("it runs").index);
        let mut seats: Vec<u32> = seats.chain(self.scheduler.view().free_seats()).collect();
        if self.scheduler.is_open() {
            // Requests whose end was reported, and whose last row runs.
            let ended = self.scheduler.view().rows().filter(|row| row.request.has_ended());
            seats.extend(ended.map(|row| row.row.seat.index).collect::<Vec<_>>());
        }
        seats.sort_unstable();
        let all = 0..self.scheduler.config().max_num_seqs as u32;
        assert!(
            all.eq(seats.iter().copied()),
            "seats of running requests, and free ones: {seats:?}"
        );
        if self.alive.is_empty() && !self.scheduler.is_open() {
            let kept = self.scheduler.retained_blocks();
            let all = self.scheduler.config().capacity();
            assert_eq!(
                blocks.num_free() + kept,
                all,
                "free and retained blocks, with nobody there"
            );
        }
    }

    /// Steps until nobody is there. Returns how everybody ended.
    pub fn finish(&mut self, mut now: f64) -> Vec<(u64, FinishReason)> {
        let mut ended = self.ended();
        for _ in 0..10_000 {
            if self.alive.is_empty() {
                self.check();
                return ended;
            }
            ended.extend(self.step(now).ended);
            now += 1.0;
        }
        panic!("still there after 10,000 steps: {:?}", self.alive);
    }
}
