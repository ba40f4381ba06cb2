//! Who runs in the next step, and with which blocks.
//!
//! ```text
//! plan      running requests first, then waiting ones, until budget, seats or blocks run out; everything is reserved
//! execute   (not here)
//! resolve   which of the tokens that came out count, and who ends with them
//! apply     tokens are appended, hashes are certain, blocks of who ended are free     or abandon: as if never planned
//! ```
//!
//! There is no prefill and no decode: a request has tokens, of which some are computed, and a step computes more of them.
//! Whoever has all of them computed gets a new one. (The design is that of vLLM's V1 scheduler, whose order of
//! decisions the policies `fcfs` and `priority` follow; continuous batching is from Yu et al. 2022, "Orca".)

mod abandon;
mod admission;
mod apply;
mod budget;
mod kv;
mod plan;
mod preempt;
mod resolve;
mod retain;
mod room;
mod running;

use l3_paged_kv::{BlockHasher, BlockManager, ManagerConfig, SeqId, TokenChain};

use crate::lease::Leases;
use crate::request::ANSWER_ROOM;
use crate::requests::{Entry, Requests};
use crate::{
    ConfigError, FinishReason, Policy, PoolError, Rejection, Request, RequestId, RequestView,
    SchedulerConfig, Status, Step, StepView, queue::WaitingQueue,
};

pub use kv::KvSource;
pub use resolve::Resolved;

/// Decides who runs when, with which blocks.
pub struct Scheduler {
    config: SchedulerConfig,
    policy: Box<dyn Policy>,
    blocks: BlockManager,
    hasher: BlockHasher,
    requests: Requests,
    waiting: WaitingQueue,
    /// Who waits with blocks whose keys and values are on their way,
    loading: WaitingQueue,
    /// and those for whom they have arrived.
    arrived: WaitingQueue,
    /// Who runs, in the order of admission.
    running: Vec<u32>,
    leases: Leases,
    kv_source: Option<Box<dyn KvSource>>,
    step: Step,
    /// Whether the step is planned and neither applied nor abandoned.
    open: bool,
    steps: u64,
    /// The next ticket at the end of the queue, and the last one given out at its front.
    back: i64,
    front: i64,
    /// Requests of the open step that are not wanted any more: they end when it is over.
    aborted: Vec<RequestId>,
    /// Requests that have ended since [`Scheduler::take_ended`] was asked.
    ended: Vec<(u32, RequestId, FinishReason)>,
    /// Whether the last plan left a request waiting for blocks or a seat, and not only for tokens of the step.
    held_up: bool,
    stats: SchedulerStats,
}

/// Counts since the beginning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SchedulerStats {
    /// Steps planned.
    pub steps: u64,
    /// Requests that were preempted, each time.
    pub preemptions: u64,
    /// Preempted requests that came back; an admission whose step was abandoned counts, too.
    pub resumes: u64,
    /// Tokens scheduled.
    pub scheduled_tokens: u64,
    /// Tokens chosen.
    pub sampled_tokens: u64,
    /// Tokens found in the cache at admissions, those of resumed requests and of abandoned steps too.
    pub cached_tokens: u64,
    /// Requests that ended.
    pub finished: u64,
}

impl Scheduler {
    /// A scheduler with a pool of its own.
    ///
    /// # Errors
    /// [`ConfigError`].
    pub fn new(config: SchedulerConfig) -> Result<Self, ConfigError> {
        config.validate()?;
        let blocks = ManagerConfig {
            prefix_caching: config.enable_prefix_caching,
            max_blocks_per_seq: config.blocks(config.max_model_len).min(config.capacity()),
            ..ManagerConfig::new(config.num_gpu_blocks, config.block_size)
        };
        Self::with_blocks(config, blocks)
    }

    /// A scheduler over a pool that is told more: a namespace, where to publish what is cached.
    ///
    /// # Errors
    /// [`ConfigError`]; also for a pool of another size than the configuration says.
    pub fn with_blocks(
        config: SchedulerConfig,
        blocks: ManagerConfig,
    ) -> Result<Self, ConfigError> {
        config.validate()?;
        if (blocks.num_blocks, blocks.block_size) != (config.num_gpu_blocks, config.block_size) {
            let why = "the pool and the scheduler disagree on blocks: give both the same numbers";
            return Err(PoolError(why.to_owned()).into());
        }
        let blocks = BlockManager::new(blocks).map_err(|e| PoolError(e.to_string()))?;
        Ok(Self {
            policy: config.policy.policy(),
            hasher: BlockHasher::new(config.block_size),
            blocks,
            requests: Requests::default(),
            waiting: WaitingQueue::default(),
            loading: WaitingQueue::default(),
            arrived: WaitingQueue::default(),
            running: Vec::with_capacity(config.max_num_seqs),
            leases: Leases::default(),
            kv_source: None,
            step: Step::default(),
            open: false,
            steps: 0,
            back: 0,
            front: 0,
            aborted: Vec::new(),
            ended: Vec::new(),
            held_up: false,
            stats: SchedulerStats::default(),
            config,
        })
    }

    /// Use a policy of one's own.
    #[must_use]
    pub fn with_policy(mut self, policy: Box<dyn Policy>) -> Self {
        self.policy = policy;
        self
    }

    /// Ask somebody for keys and values that are not in the pool, at each admission.
    #[must_use]
    pub fn with_kv_source(mut self, source: Box<dyn KvSource>) -> Self {
        self.kv_source = Some(source);
        self
    }

    /// Take a request. Returns its place: see [`StepRow::place`](crate::StepRow::place).
    ///
    /// # Errors
    /// [`Rejection`], for a request that could never be completed, however long it waits.
    pub fn add_request(&mut self, request: Request) -> Result<u32, Rejection> {
        self.check(&request)?;
        let room = request.max_tokens.min(ANSWER_ROOM);
        let room = request.prompt.len().saturating_add(room).min(self.config.max_model_len);
        let mut chain = TokenChain::with_capacity(&self.hasher, request.extra_keys(), room);
        chain.extend(&request.prompt);
        self.back += 1;
        let place = self.requests.insert(Entry::new(request, chain, self.back));
        self.enqueue(place);
        Ok(place)
    }

    /// Whether a request would be taken: whether it can be completed, with all of the pool to itself.
    ///
    /// # Errors
    /// [`Rejection`], with what to do about it.
    pub fn check(&self, request: &Request) -> Result<(), Rejection> {
        if self.requests.find(request.id).is_some() {
            return Err(Rejection::DuplicateId(request.id));
        }
        Self::completable(&self.config, request.prompt.len(), request.max_tokens)
    }

    /// Whether a scheduler of this configuration can complete a request of `prompt` tokens that asks for `max_tokens`, with
    /// all of the pool to itself.
    ///
    /// # Errors
    /// [`Rejection`], with what to do about it.
    pub fn completable(
        config: &SchedulerConfig,
        prompt: usize,
        max_tokens: usize,
    ) -> Result<(), Rejection> {
        // exercise l5.arrive
        if prompt == 0 {
            return Err(Rejection::EmptyPrompt);
        }
        if prompt >= config.max_model_len {
            return Err(Rejection::MaxModelLen { prompt, max_model_len: config.max_model_len });
        }
        // The last token of an answer is never fed, so it needs no slot: who asks for one needs none.
        let tokens = prompt + usize::from(max_tokens > 1);
        let (needed, capacity) = (config.blocks(tokens), config.capacity());
        if needed > capacity {
            return Err(Rejection::ExceedsPool { needed, capacity });
        }
        Ok(())
        // end of exercise
    }

    /// Whether the first waiting request cannot be admitted, for lack of blocks or seats. One that waits only because the
    /// last step had no tokens left for it is not held up.
    pub fn is_held_up(&self) -> bool {
        self.held_up && self.num_waiting() > 0
    }

    /// Put a request into the queue, where its policy says.
    fn enqueue(&mut self, place: u32) {
        let rank = self.policy.order(&self.requests.at(place).view());
        self.requests.at_mut(place).rank = rank;
        self.waiting.insert(rank, place);
    }

    /// End a request that is not wanted any more. Its blocks are free at once, or when the step that computes them is over.
    /// Returns whether there was such a request.
    pub fn abort(&mut self, id: RequestId) -> bool {
        let Some(place) = self.requests.find(id) else { return false };
        let entry = self.requests.at_mut(place);
        if entry.aborted {
            return false;
        }
        if self.open && entry.planned {
            // The model is writing into its blocks.
            entry.aborted = true;
            self.aborted.push(id);
            return true;
        }
        if entry.in_flight().is_some() {
            // So does somebody else: until `kv_arrived` is told.
            entry.aborted = true;
            return true;
        }
        self.remove(place, FinishReason::Aborted);
        true
    }

    /// End a request that is in no open step, for a reason of the caller's. Returns whether there was such a request.
    pub fn end(&mut self, id: RequestId, reason: FinishReason) -> bool {
        let Some(place) = self.requests.find(id) else { return false };
        let entry = self.requests.at(place);
        if (self.open && entry.planned) || entry.in_flight().is_some() {
            return false;
        }
        self.remove(place, reason);
        true
    }

    /// End a request that is in no open step: it leaves every list, its blocks are free.
    fn remove(&mut self, place: u32, reason: FinishReason) {
        let entry = self.requests.at(place);
        match entry.status {
            Status::Waiting => drop(self.waiting.remove(entry.rank)),
            Status::WaitingForKv => {
                let rank = entry.rank;
                self.loading.remove(rank);
                self.arrived.remove(rank);
            }
            Status::Running => self.leave_running(place),
        }
        let seq = self.requests.at_mut(place).seq.take();
        if let Some(seq) = seq {
            self.free_blocks(seq);
        }
        if let Some(entry) = self.requests.remove(place) {
            self.ended.push((place, entry.id, reason));
            self.stats.finished += 1;
        }
    }

    /// A seat is empty; those behind move up.
    fn leave_running(&mut self, place: u32) {
        if let Some(i) = self.running.iter().position(|other| *other == place) {
            self.running.remove(i);
        }
    }

    /// Give a sequence's blocks back. What others had hit of it in this step, before it was computed, they have hit in
    /// vain: their admissions are taken back, too.
    fn free_blocks(&mut self, seq: SeqId) {
        let unfounded = self.blocks.free(seq);
        debug_assert!(unfounded.is_ok(), "{unfounded:?}");
        for seq in unfounded.unwrap_or_default() {
            self.unadmit(seq);
        }
    }

    /// Whether any request has not ended, or has and nobody was told, or blocks are to be stored.
    pub fn has_unfinished(&self) -> bool {
        self.requests.len() > 0 || !self.ended.is_empty() || self.leases.has_to_store()
    }

    /// Requests that run.
    pub fn num_running(&self) -> usize {
        self.running.len()
    }

    /// Requests that wait.
    pub fn num_waiting(&self) -> usize {
        self.waiting.len() + self.loading.len() + self.arrived.len()
    }

    /// Who runs, in the order of admission.
    pub fn running(&self) -> impl ExactSizeIterator<Item = RequestView<'_>> {
        self.running.iter().map(|place| self.requests.at(*place).view())
    }

    /// Who waits, in the order of the queue.
    pub fn waiting(&self) -> impl Iterator<Item = RequestView<'_>> {
        let holding = self.arrived.places().chain(self.loading.places());
        let places = holding.chain(self.waiting.places());
        places.map(|place| self.requests.at(place).view())
    }

    /// A request that has not ended.
    pub fn request(&self, id: RequestId) -> Option<RequestView<'_>> {
        Some(self.requests.at(self.requests.find(id)?).view())
    }

    /// The step that is planned, with what its executor must see.
    pub fn view(&self) -> StepView<'_> {
        StepView { step: &self.step, requests: &self.requests, blocks: &self.blocks }
    }

    /// Whether a step is planned and neither applied nor abandoned.
    pub fn is_open(&self) -> bool {
        self.open
    }

    /// Its limits.
    pub fn config(&self) -> &SchedulerConfig {
        &self.config
    }

    /// The name of its policy.
    pub fn policy_name(&self) -> &'static str {
        self.policy.name()
    }

    /// Who has which blocks.
    pub fn blocks(&self) -> &BlockManager {
        &self.blocks
    }

    /// Blocks that are kept for nobody who runs.
    pub fn leases(&self) -> &Leases {
        &self.leases
    }

    /// Counts since the beginning.
    pub fn stats(&self) -> SchedulerStats {
        self.stats
    }

    /// Forget what is cached, leases included. With `preempt_running`, whoever runs is preempted first, the last one admitted
    /// first of all: returned in that order. Returns `None`, and changes nothing, while somebody holds blocks who cannot
    /// give them up: who runs without `preempt_running`, and who has them written or read by others (loading, storing).
    pub fn reset_prefix_cache(&mut self, preempt_running: bool) -> Option<Vec<RequestId>> {
        self.abandon();
        let busy = self.loading.len() > 0 || self.leases.is_storing();
        let seated = self.running.len() + self.arrived.len();
        if busy || (seated > 0 && !preempt_running) {
            return None;
        }
        let mut preempted = Vec::new();
        while let Some(place) = self.running.last().copied() {
            preempted.push(self.requests.at(place).id);
            self.preempt(self.running.len() - 1);
        }
        self.give_up_arrived();
        self.end_all_leases();
        self.blocks.reset_prefix_cache().ok().map(|()| preempted)
    }
}

impl std::fmt::Debug for Scheduler {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Scheduler")
            .field("policy", &self.policy.name())
            .field("running", &self.running.len())
            .field("waiting", &self.num_waiting())
            .field("blocks", &self.blocks)
            .finish_non_exhaustive()
    }
}
