//! The scheduler: which requests run in the next step, and with which blocks.
//!
//! ```text
//! plan      running requests, then waiting ones, until tokens, seats or blocks run out; everything is reserved
//!           (the composer can limit the step to rows that decode, to prompts, or to one adapter)
//! execute   (the executor)
//! resolve   which of the sampled tokens count, and which requests end with them
//! apply     tokens are appended, block hashes become certain, ended requests free their blocks
//!           (or abandon: as if the step had never been planned)
//! ```
//!
//! A device need not wait while the next step is planned: [`Scheduler::plan_ahead`].
//!
//! There is no prefill and no decode: a request has tokens, of which some are computed, and a step computes more of
//! them. When all are computed, a new one is sampled. (The design is that of vLLM's V1 scheduler, whose order of
//! decisions the policies `fcfs` and `priority` follow; continuous batching is from Yu et al. 2022, "Orca".)

mod abandon;
mod admission;
mod ahead;
mod apply;
mod budget;
mod compose;
mod drafts;
mod events;
mod fetches;
mod kv;
mod kv_log;
mod plan;
mod preempt;
mod prefill_time;
mod reclaim;
mod rerank;
mod resolve;
mod retain;
mod room;
mod running;
mod service;
mod state;
#[cfg(test)]
mod tests;
mod write_back;

pub(crate) use drafts::{num_accepted, num_computed};

use l3_paged_kv::{BlockHasher, BlockManager, ManagerConfig, SeqId, TokenChain};

use crate::composer::{Composer, CurrentTurn};
use crate::jobs::InferredJobs;
use crate::lease::Leases;
use crate::request::ANSWER_ROOM;
use crate::requests::{Entry, Requests};
use crate::seats::Seats;
use crate::{
    ConfigError, CostModel, FinishReason, LeaseEnd, LeaseId, Policy, PoolError, Rejection, Request,
    RequestId, Retention, SchedulerConfig, SecondMemory, Status, StepPlan, Time,
    queue::WaitingQueue,
};
use ahead::Ahead;
use events::Happened;
use prefill_time::PrefillTime;
use reclaim::Stuck;
use service::ServiceFloor;
use write_back::WriteBacks;

pub use events::LeaseStats;
pub use fetches::KvFetches;

pub use kv::{KvCompletion, KvConnector, MAX_LOOKUP_SECONDS, Matched};
pub use kv_log::{KvChange, KvChangeRecord};
pub use resolve::{Resolved, ResolvedRow};

/// Decides which requests run in each step, and with which blocks.
///
/// # Example
///
/// One request, run by hand with a [`FakeModel`](crate::sim::FakeModel); [`EngineCore`](crate::EngineCore) is this
/// loop:
///
/// ```
/// use l5_scheduler::sim::FakeModel;
/// use l5_scheduler::{Executor, Request, RequestId, Resolved, Scheduler, SchedulerConfig, StepOutput, Time};
///
/// let mut scheduler = Scheduler::new(SchedulerConfig::new(64, 16))?; // 64 blocks of 16 tokens
/// let mut model = FakeModel::default();
/// let (id, prompt) = (RequestId(0), vec![1, 2, 3]);
/// scheduler.add_request(Request { id, prompt, max_tokens: 2, ..Request::default() })?;
/// model.begin(id, vec![50, 51]); // the output that the fake will sample
///
/// let (mut output, mut resolved, mut tokens) = (StepOutput::default(), Resolved::default(), Vec::new());
/// while scheduler.has_unfinished() {
///     output.clear();
///     scheduler.plan(Time::ZERO);
///     model.execute(&scheduler.view(), &mut output)?;
///     scheduler.resolve(&output, &mut resolved)?;
///     scheduler.apply(&resolved, Time::ZERO);
///     tokens.extend(resolved.rows().flat_map(|row| row.tokens.to_vec()));
///     for (id, reason) in scheduler.take_ended() {
///         model.end(id, reason);
///     }
/// }
/// assert_eq!(tokens, [50, 51]);
/// assert_eq!(scheduler.stats().steps, 2, "the prompt and its first token, then the second token");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Scheduler {
    config: SchedulerConfig,
    policy: Box<dyn Policy>,
    /// `None`: the default one, which decides nothing, so that it is not asked.
    composer: Option<Box<dyn Composer>>,
    retention: Box<dyn Retention>,
    /// Cost model of the executor, if known.
    cost: Option<CostModel>,
    /// Whether the executor can store blocks elsewhere.
    can_store: bool,
    /// Seconds to compute a token of a prompt, if known.
    prefill: PrefillTime,
    /// Memory behind the pool, when the last step was planned.
    second_memory: Option<SecondMemory>,
    /// Copies that the next step begins with.
    write_backs: WriteBacks,
    /// Time of the last plan, or of the end of the last step.
    now: Time,
    blocks: BlockManager,
    hasher: BlockHasher,
    requests: Requests,
    waiting: WaitingQueue,
    /// Requests with blocks that are being loaded.
    loading: WaitingQueue,
    /// Requests with blocks whose load has arrived.
    arrived: WaitingQueue,
    /// Running requests, in the order of admission.
    running: Vec<u32>,
    /// Seats of the running requests, and free ones.
    seats: Seats,
    leases: Leases,
    /// Jobs of requests that name none.
    inferred: InferredJobs,
    /// What is owed to requests that wait while others are preferred.
    service: ServiceFloor,
    connector: Option<Box<dyn KvConnector>>,
    /// Requests of this plan that wait for an answer of the connector.
    lookups: Vec<u32>,
    /// Changes whenever blocks are freed, or a lease begins or ends.
    frees: u64,
    /// Value of `frees` at which ending all leases would have freed no block.
    barren: Option<u64>,
    /// For each queue, the request at its head for which all leases together are not enough.
    stuck: [Option<Stuck>; 2],
    /// The request for which all leases and all requests that it may preempt are not enough.
    stuck_for_good: Option<Stuck>,
    /// Leases that end for the request that is being admitted, because requests were preempted on the assumption that
    /// they do. Empty: the retention is asked.
    granted: Vec<LeaseId>,
    /// The newest step.
    step: StepPlan,
    /// Adapters of the newest step.
    turn: CurrentTurn,
    /// Whether the newest step is neither applied nor abandoned.
    open: bool,
    /// The step that runs, while `step` was planned ahead of its end.
    running_step: StepPlan,
    ahead: Ahead,
    steps: u64,
    /// Last ticket given at the end of the queue, and last one given at its front.
    back: i64,
    front: i64,
    /// Requests of open steps that were aborted: they end when their last row is over.
    aborted: Vec<RequestId>,
    /// Requests that have ended since the last [`Scheduler::take_ended`].
    ended: Vec<(RequestId, FinishReason)>,
    /// Whether a running request may have blocks that only drafts needed.
    draft_blocks: bool,
    /// Whether the last plan that could admit requests left one waiting for blocks or a seat, and not only for tokens of
    /// the step.
    held_up: bool,
    stats: SchedulerStats,
    lease_stats: LeaseStats,
    kv_log: kv_log::KvLog,
    /// Number of accepted drafts at each position of a row.
    accepted_by_position: Vec<u64>,
}

/// Counters since the scheduler was created.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SchedulerStats {
    /// Steps planned, also those without rows and those that were abandoned.
    pub steps: u64,
    /// Preemptions.
    pub preemptions: u64,
    /// Admissions of preempted requests; one whose step was abandoned counts, too.
    pub resumes: u64,
    /// Tokens of all rows.
    pub scheduled_tokens: u64,
    /// Tokens sampled.
    pub sampled_tokens: u64,
    /// Rows with drafts.
    pub drafted_rows: u64,
    /// Drafts of all rows.
    pub draft_tokens: u64,
    /// Drafts that were accepted.
    pub accepted_tokens: u64,
    /// Drafts that were proposed and not verified, because the step had no tokens or blocks left for them.
    pub cut_draft_tokens: u64,
    /// Tokens hit in the cache at admissions, also at those of resumed requests and of abandoned steps.
    pub cached_tokens: u64,
    /// Requests that have ended.
    pub finished: u64,
}

impl Scheduler {
    /// Creates a scheduler and its block pool.
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

    /// Creates a scheduler with a configured block pool: with a namespace, or with a receiver of cache events.
    ///
    /// # Errors
    /// [`ConfigError`]; also if the pool's size is not that of the scheduler's configuration.
    pub fn with_blocks(
        config: SchedulerConfig,
        blocks: ManagerConfig,
    ) -> Result<Self, ConfigError> {
        config.validate()?;
        if (blocks.num_blocks, blocks.block_size) != (config.num_gpu_blocks, config.block_size) {
            let why =
                "num_gpu_blocks and block_size of the pool and of the scheduler must be equal";
            return Err(PoolError(why.to_owned()).into());
        }
        let blocks = BlockManager::new(blocks).map_err(|e| PoolError(e.to_string()))?;
        Ok(Self {
            policy: config.policy.policy(),
            composer: config.compose.decides(config.adapter_turn),
            retention: config.policy.retention(config.continuum_ttl),
            cost: None,
            can_store: false,
            prefill: PrefillTime::default(),
            second_memory: None,
            write_backs: WriteBacks::default(),
            now: Time::ZERO,
            hasher: BlockHasher::new(config.block_size),
            blocks,
            requests: Requests::default(),
            waiting: WaitingQueue::default(),
            loading: WaitingQueue::default(),
            arrived: WaitingQueue::default(),
            running: Vec::with_capacity(config.max_num_seqs),
            seats: Seats::new(config.max_num_seqs),
            leases: Leases::default(),
            accepted_by_position: vec![0; config.num_speculative_tokens],
            inferred: InferredJobs::default(),
            service: ServiceFloor::new(config.policy.policy().service_floor()),
            connector: None,
            lookups: Vec::with_capacity(config.max_num_seqs),
            frees: 0,
            barren: None,
            stuck: [None, None],
            stuck_for_good: None,
            granted: Vec::new(),
            step: StepPlan::default(),
            turn: CurrentTurn::default(),
            open: false,
            running_step: StepPlan::default(),
            ahead: Ahead::default(),
            steps: 0,
            back: 0,
            front: 0,
            aborted: Vec::new(),
            ended: Vec::new(),
            draft_blocks: false,
            held_up: false,
            stats: SchedulerStats::default(),
            lease_stats: LeaseStats::default(),
            kv_log: kv_log::KvLog::default(),
            config,
        })
    }

    /// Replaces the composer.
    #[must_use]
    pub fn with_composer(mut self, composer: Box<dyn Composer>) -> Self {
        self.composer = Some(composer);
        self
    }

    /// Asks a connector at each admission for keys and values that are not in the pool.
    #[must_use]
    pub fn with_kv_connector(mut self, connector: Box<dyn KvConnector>) -> Self {
        self.connector = Some(connector);
        self
    }

    /// Adds a request to the waiting queue.
    ///
    /// # Errors
    /// [`Rejection`] if the request could never be completed, however long it waits.
    pub fn add_request(&mut self, mut request: Request) -> Result<(), Rejection> {
        self.check(&request)?;
        let room = request.max_tokens.min(ANSWER_ROOM);
        let room = request.prompt.len().saturating_add(room).min(self.config.max_model_len);
        let mut chain = TokenChain::with_capacity(&self.hasher, request.extra_keys(), room);
        chain.extend(&request.prompt);
        self.back += 1;
        let infers = self.config.infer_jobs && request.job.is_none();
        if infers {
            request.job = Some(self.inferred.infer(chain.hashes()));
        }
        let key = self.requests.insert(Entry::new(request, chain, self.back));
        let entry = self.requests.at_mut(key);
        entry.opens_inferred_job = infers && entry.job_arrival >= entry.arrival;
        self.await_service(key);
        self.enqueue(key);
        self.tell(&Happened::Arrived(key));
        Ok(())
    }

    /// Checks whether a request would be accepted: whether it could be completed with the whole pool.
    ///
    /// # Errors
    /// [`Rejection`], which says what to do.
    pub fn check(&self, request: &Request) -> Result<(), Rejection> {
        if self.requests.uses(request.id) {
            return Err(Rejection::DuplicateId(request.id));
        }
        Self::completable(&self.config, request.prompt.len(), request.max_tokens)
    }

    /// Checks whether a scheduler of this configuration could complete a request of `prompt` tokens and at most
    /// `max_tokens` output tokens with the whole pool.
    ///
    /// # Errors
    /// [`Rejection`], which says what to do.
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
        // The last output token is never fed, so it needs no slot: with `max_tokens` of 1 no output token needs one.
        let tokens = prompt + usize::from(max_tokens > 1);
        let (needed, capacity) = (config.blocks(tokens), config.capacity());
        if needed > capacity {
            return Err(Rejection::ExceedsPool { needed, capacity });
        }
        Ok(())
        // end of exercise
    }

    /// Whether the first waiting request cannot be admitted for lack of blocks or seats. One that waits only because
    /// the last step had no tokens left is not held up.
    pub fn is_held_up(&self) -> bool {
        self.held_up && self.num_waiting() > 0
    }

    /// Inserts a request into the queue at the rank that the policy gives it.
    fn enqueue(&mut self, key: u32) {
        let rank = self.policy.order(&self.requests.at(key).view(), &self.context());
        self.requests.at_mut(key).rank = rank;
        self.waiting.insert(rank, key);
    }

    /// Aborts a request. Its blocks are free at once, or when the step that writes to them is over. Returns whether
    /// there was such a request.
    pub fn abort(&mut self, id: RequestId) -> bool {
        let Some(key) = self.requests.find(id) else { return false };
        let entry = self.requests.at_mut(key);
        if entry.aborted {
            return false;
        }
        if entry.in_step() {
            // The model is writing to its blocks.
            entry.aborted = true;
            self.aborted.push(id);
            return true;
        }
        if entry.load_in_flight().is_some() {
            // A load is writing to its blocks, until `kv_arrived`.
            entry.aborted = true;
            return true;
        }
        self.remove(key, FinishReason::Aborted);
        true
    }

    /// Ends a request that is in no open step, with the caller's finish reason. Returns whether there was such a
    /// request.
    pub fn end(&mut self, id: RequestId, reason: FinishReason) -> bool {
        let Some(key) = self.requests.find(id) else { return false };
        let entry = self.requests.at(key);
        if entry.in_step() || entry.load_in_flight().is_some() {
            return false;
        }
        self.remove(key, reason);
        true
    }

    /// Removes a request that is in no open step from all lists, and frees its blocks.
    fn remove(&mut self, key: u32, reason: FinishReason) {
        let entry = self.requests.at(key);
        match entry.status {
            Status::Waiting => drop(self.waiting.remove(entry.rank)),
            Status::WaitingForKv => {
                let rank = entry.rank;
                self.loading.remove(rank);
                self.arrived.remove(rank);
            }
            Status::Running => self.leave_running(key),
        }
        self.forget_stuck(key);
        self.leave_service(key);
        let seq = self.requests.at_mut(key).seq.take();
        if let Some(seq) = seq {
            self.free_blocks(seq);
        }
        let reported = self.requests.at(key).over;
        if !reported {
            self.tell(&Happened::Finished(key, reason));
        }
        if let Some(entry) = self.requests.remove(key).filter(|_| !reported) {
            self.report_end(entry.id, reason);
        }
    }

    fn report_end(&mut self, id: RequestId, reason: FinishReason) {
        self.ended.push((id, reason));
        self.stats.finished += 1;
    }

    /// Takes a request out of the list of running ones, and frees its seat.
    fn leave_running(&mut self, key: u32) {
        if let Some(i) = self.running.iter().position(|other| *other == key) {
            self.running.remove(i);
        }
        self.free_seat(key);
    }

    /// Takes a request's seat back, because it does not run any more. It has no drafts without one.
    fn free_seat(&mut self, key: u32) {
        let entry = self.requests.at_mut(key);
        entry.drafts.clear();
        let seat = entry.seat.take();
        debug_assert!(seat.is_some(), "a request that runs has a seat");
        if let Some(seat) = seat {
            self.seats.give_back(seat);
        }
    }

    /// Frees a sequence's blocks. Requests of this step that had hit blocks which it has not computed yet lose their
    /// admission.
    fn free_blocks(&mut self, seq: SeqId) {
        self.frees += 1;
        let unfounded = self.blocks.free(seq);
        debug_assert!(unfounded.is_ok(), "{unfounded:?}");
        for seq in unfounded.unwrap_or_default() {
            self.unadmit(seq);
        }
    }

    /// Clears the prefix cache and ends all leases. With `preempt_running`, running requests are preempted first, from
    /// the last admitted on; their ids are returned in that order. Returns `None`, and changes nothing, while blocks
    /// cannot be given up: those of running requests without `preempt_running`, and those that are being loaded or
    /// stored.
    pub fn reset_prefix_cache(&mut self, preempt_running: bool) -> Option<Vec<RequestId>> {
        self.abandon();
        self.write_backs.clear();
        let busy = self.loading.len() > 0 || self.leases.is_storing();
        let seated = self.running.len() + self.arrived.len();
        if busy || (seated > 0 && !preempt_running) {
            return None;
        }
        let mut preempted = Vec::new();
        while let Some(key) = self.running.last().copied() {
            preempted.push(self.requests.at(key).id);
            self.preempt(self.running.len() - 1);
        }
        self.give_up_arrived();
        while let Some(lease) = self.leases.first() {
            self.end_lease(lease.id, LeaseEnd::Reset);
        }
        self.blocks.reset_prefix_cache().ok().map(|()| preempted)
    }
}
