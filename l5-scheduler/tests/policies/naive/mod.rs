//! A naive scheduler: lists that are searched from the beginning, tokens compared as tokens, and preemption for a
//! waiting request tried on a copy.
//!
//! Written from what vLLM 0.32 is known to do (its defect about hashes of unscheduled chunks aside), and for
//! `strict-priority`, leases, compositions and loads from their documented rules, not from the code that is tested.
//! Nothing is remembered between two questions: leases are searched and sorted for each one, ranks are computed anew
//! for each look at the queue, and the blocks that loads will need are summed up for each load.

mod admission;
mod blocks;
mod leases;
mod loads;
mod queue;
mod running;
mod shapes;

use std::collections::BTreeMap;

use l5_scheduler::{FinishReason, PolicyKind, SchedulerConfig, Time};

use crate::driver::{Happened, drafts_behind, verified};
use crate::learning::Names;
use crate::second_memory::{Question, Script};
use blocks::Known;
use leases::NaiveLease;
pub use loads::LoadEvent;
use loads::NaiveLoad;
use queue::JobName;
use shapes::{Shape, Turn};

/// A request that has not ended.
#[derive(Clone, Debug)]
pub struct NaiveRequest {
    pub id: u64,
    pub tokens: Vec<u32>,
    pub prompt: usize,
    pub max_tokens: usize,
    pub eos: Option<u32>,
    pub arrival: f64,
    pub deadline: Option<f64>,
    pub priority: i64,
    pub adapter: Option<String>,
    pub tenant: Option<String>,
    pub job: Option<JobName>,
    pub last_step: bool,
    /// Arrival of the first request of its job.
    job_arrival: f64,
    ticket: i64,
    computed: usize,
    /// Tokens that may follow its tokens.
    drafts: Vec<u32>,
    table: Vec<usize>,
    /// Number of blocks of the table that can be hit.
    hashed: usize,
    preempted_now: bool,
    was_preempted: bool,
    /// Load for which it waits, or which has arrived while it waits.
    load: Option<NaiveLoad>,
    /// Number of tokens that have blocks since it loaded, even if fewer have arrived.
    loaded: usize,
    /// Number of times that the second memory was asked about it.
    questions: u64,
    /// Time at which the second memory first did not know.
    asked: Option<f64>,
    /// Whether it ends as soon as its load has arrived.
    aborted: bool,
}

impl NaiveRequest {
    pub fn new(id: u64, prompt: &[u32], max_tokens: usize) -> Self {
        Self {
            id,
            tokens: prompt.to_vec(),
            prompt: prompt.len(),
            max_tokens,
            eos: None,
            arrival: 0.0,
            deadline: None,
            priority: 0,
            adapter: None,
            tenant: None,
            job: None,
            last_step: false,
            job_arrival: 0.0,
            ticket: 0,
            computed: 0,
            drafts: Vec::new(),
            table: Vec::new(),
            hashed: 0,
            preempted_now: false,
            was_preempted: false,
            load: None,
            loaded: 0,
            questions: 0,
            asked: None,
            aborted: false,
        }
    }

    /// Urgency under a policy by priorities: what is compared before ids.
    fn urgency(&self, policy: PolicyKind) -> (i64, Time, Time) {
        let by_deadline = policy == PolicyKind::StrictPriority;
        let latest = if by_deadline { self.deadline.unwrap_or(f64::INFINITY) } else { 0.0 };
        (self.priority, Time(latest), Time(self.arrival))
    }

    fn decodes(&self) -> bool {
        self.computed + 1 == self.tokens.len()
    }
}

/// One request's part of a step.
#[derive(Clone, Debug)]
struct Row {
    id: u64,
    /// Number of tokens computed before.
    computed: usize,
    /// Number of tokens of this step, drafts left out.
    len: usize,
    drafts: usize,
    /// Blocks that can be hit only since the step was planned.
    pending: Vec<usize>,
    /// For a request that was admitted in this step, number of tokens that were hit in the cache.
    cached: Option<usize>,
}

#[derive(Clone, Debug)]
pub struct Naive {
    config: SchedulerConfig,
    /// Free blocks, the next one to be handed out first.
    free: Vec<usize>,
    /// Number of users of each block.
    users: Vec<usize>,
    /// Contents of blocks, in the order in which they became known.
    cached: Vec<(Known, usize)>,
    /// Waiting requests, also those with blocks that are being loaded, in the order of their ranks.
    waiting: Vec<NaiveRequest>,
    running: Vec<NaiveRequest>,
    /// Rows of the step that is planned.
    rows: Vec<Row>,
    preempted: Vec<u64>,
    ended: Vec<(u64, FinishReason)>,
    /// Tokens of the step that are left, and how many of them one request can have.
    budget: usize,
    most: usize,
    shape: Shape,
    turn: Turn,
    /// Number of steps that decoded since the last one that took prompts.
    decode_steps: usize,
    /// Adapter of the last turn, and its steps: of steps that decode, and of others.
    turns: [(String, usize); 2],
    now: f64,
    /// Which leases the retention names; `None` without a retention.
    pub names: Option<Names>,
    /// Whether the order is that of `LeasedFirst`.
    pub leased_first: bool,
    leases: Vec<NaiveLease>,
    next_lease: u64,
    /// Number of leases and requests that lost their blocks.
    losses: u64,
    /// Arrivals of the first requests of jobs.
    jobs: Vec<(JobName, f64)>,
    front: i64,
    back: i64,
    /// Leases that end for the request that is being admitted, while others are preempted for it.
    granted: Option<Vec<u64>>,
    /// Answers of the second memory; `None` without one.
    pub memory: Option<Script>,
    /// Questions to the second memory that were not compared yet.
    pub questions: Vec<Question>,
    /// Requests that this plan left waiting for an answer of the second memory.
    asking: Vec<u64>,
    /// Sum of the tokens that were hit in the cache by admitted requests.
    pub cached_tokens: u64,
    /// How often something happened to loads.
    pub seen: BTreeMap<LoadEvent, usize>,
}

impl Naive {
    pub fn new(config: &SchedulerConfig) -> Self {
        Self {
            config: config.clone(),
            free: (1..config.num_gpu_blocks).collect(),
            users: vec![0; config.num_gpu_blocks],
            cached: Vec::new(),
            waiting: Vec::new(),
            running: Vec::new(),
            rows: Vec::new(),
            preempted: Vec::new(),
            ended: Vec::new(),
            budget: 0,
            most: 0,
            shape: Shape::Any,
            turn: Turn::All,
            decode_steps: 0,
            turns: Default::default(),
            now: 0.0,
            names: None,
            leased_first: false,
            leases: Vec::new(),
            next_lease: 0,
            losses: 0,
            jobs: Vec::new(),
            front: 0,
            back: 0,
            granted: None,
            memory: None,
            questions: Vec::new(),
            asking: Vec::new(),
            cached_tokens: 0,
            seen: BTreeMap::new(),
        }
    }

    fn strict(&self) -> bool {
        self.config.policy == PolicyKind::StrictPriority
    }

    fn seats(&self) -> usize {
        let seats = self.config.max_num_seqs;
        seats.min(self.config.max_num_active_seqs.unwrap_or(seats))
    }

    pub fn abort(&mut self, id: u64) {
        if let Some(i) = self.running.iter().position(|request| request.id == id) {
            let mut request = self.running.remove(i);
            self.give_back(&mut request);
            self.end(&request, FinishReason::Aborted);
        } else if let Some(i) = self.waiting.iter().position(|request| request.id == id) {
            if self.waiting[i].is_loading() {
                // The second memory writes to its blocks.
                self.abort_load(i);
                return;
            }
            let mut request = self.waiting.remove(i);
            self.give_back(&mut request);
            self.end(&request, FinishReason::Aborted);
        }
    }

    /// Resets the prefix cache, unless blocks are being loaded or stored, or are held by requests that may not be
    /// preempted.
    pub fn reset(&mut self, preempt: bool) {
        let holds = |request: &NaiveRequest| request.load.is_some();
        let held = !self.running.is_empty() || self.waiting.iter().any(holds);
        let storing = self.leases.iter().any(|lease| lease.storing);
        let loading = self.waiting.iter().any(NaiveRequest::is_loading);
        if storing || loading || (held && !preempt) {
            return;
        }
        while !self.running.is_empty() {
            self.preempt(self.running.len() - 1);
        }
        self.preempted.clear();
        self.waiting.iter_mut().for_each(|request| request.preempted_now = false);
        self.give_up_loaded_blocks();
        self.soonest().into_iter().for_each(|lease| self.end_lease(lease));
        self.cached.clear();
    }

    /// Plans a step and applies it.
    pub fn step(&mut self, now: f64) -> Happened {
        self.now = now;
        self.end_expired_leases();
        let ended = self.ended.len();
        self.asking.clear();
        for attempt in 0..3 {
            self.compose(attempt);
            let limited = self.shape != Shape::Any || self.turn != Turn::All;
            self.plan();
            let nothing =
                self.rows.is_empty() && self.preempted.is_empty() && self.ended.len() == ended;
            if !nothing {
                self.count();
            }
            // A step without rows is planned again if its composition is to blame.
            if !nothing || !limited {
                break;
            }
        }
        self.finish_step()
    }

    fn plan(&mut self) {
        let eligible = self.running.len() + self.waiting.len();
        self.budget = self.config.max_num_batched_tokens;
        if let Shape::Prompts(chunk) = self.shape {
            self.budget = self.budget.min(chunk);
        }
        self.most = match self.config.long_prefill_token_threshold {
            0 => usize::MAX,
            _ if eligible <= 1 => usize::MAX,
            t if self.config.long_prefill_token_threshold_adaptive => t.max(self.budget / eligible),
            t => t,
        };
        self.plan_running();
        if self.shape != Shape::Decodes && (self.preempted.is_empty() || self.strict()) {
            self.plan_waiting();
        }
    }

    fn finish_step(&mut self) -> Happened {
        let rows = std::mem::take(&mut self.rows);
        for Row { id, len, .. } in &rows {
            let i = self.running.iter().position(|request| request.id == *id).unwrap();
            self.running[i].computed += len;
        }
        for Row { id, drafts, .. } in &rows {
            let i = self.running.iter().position(|request| request.id == *id).unwrap();
            let request = &mut self.running[i];
            if request.computed < request.tokens.len() {
                continue;
            }
            let mut ended = None;
            let right = verified(&request.tokens, &request.drafts[..*drafts]);
            // All but the last were fed as drafts.
            for token in &right {
                request.tokens.push(*token);
                let long = request.tokens.len() >= self.config.max_model_len
                    || request.tokens.len() - request.prompt >= request.max_tokens;
                ended = match () {
                    () if request.eos == Some(*token) => Some(FinishReason::Stop),
                    () if long => Some(FinishReason::Length),
                    () => continue,
                };
                break;
            }
            request.computed = request.tokens.len() - 1;
            let Some(reason) = ended else {
                let more = request.max_tokens - (request.tokens.len() - request.prompt) - 1;
                request.drafts = drafts_behind(&request.tokens);
                request.drafts.truncate(more.min(self.config.num_speculative_tokens));
                continue;
            };
            let request = self.running.remove(i);
            self.end(&request, reason);
            self.finish(request);
        }
        self.waiting.iter_mut().for_each(|request| request.preempted_now = false);
        let cached = rows.iter().filter_map(|row| Some((row.id, row.cached?)));
        Happened {
            cached: cached.collect(),
            rows: rows.iter().map(|row| (row.id, row.computed, row.len + row.drafts)).collect(),
            preempted: std::mem::take(&mut self.preempted),
            ended: std::mem::take(&mut self.ended),
            running: self.running.iter().map(|request| request.id).collect(),
            waiting: self.waiting_ids(),
            free: self.free.len(),
        }
    }

    /// Whether no request is there, and every end was reported.
    pub fn is_idle(&self) -> bool {
        self.running.is_empty() && self.waiting.is_empty() && self.ended.is_empty()
    }
}
