//! Table of the unfinished requests: a slab, so that indices are small and are reused.

use std::collections::{HashMap, HashSet};

use l3_paged_kv::{SeqId, TokenChain};

use crate::jobs::Jobs;
use crate::{Adapter, Job, JobKey, Note, Rank, Request, RequestId, Seat, Time};

/// State of an unfinished request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// In the waiting queue: not admitted yet, or preempted.
    Waiting,
    /// Waiting with blocks whose contents are being loaded from elsewhere.
    WaitingForKv,
    /// Running: it has blocks and one of the `max_num_seqs` seats.
    Running,
}

/// A load of keys and values from elsewhere: those of tokens `from..to`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Loading {
    pub from: usize,
    pub to: usize,
    pub arrived: bool,
}

/// State of one request.
///
/// What every step reads or writes comes first, on as few cache lines as possible: with a thousand running requests,
/// planning a step is mostly waiting for these lines.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Entry {
    pub id: RequestId,
    /// Number of tokens whose keys and values are in its blocks.
    pub computed: usize,
    /// Number of output tokens, 0 or 1, that a step samples for it while the next step is planned.
    pub awaited: usize,
    pub prompt_len: usize,
    pub max_tokens: usize,
    /// Sequence that owns its blocks; `None` without blocks.
    pub seq: Option<SeqId>,
    /// Seat, while it runs.
    pub seat: Option<Seat>,
    pub status: Status,
    /// Whether it has a row in the newest step.
    pub planned: bool,
    /// Whether it has a row in the step that runs while the newest one is planned.
    pub in_flight: bool,
    /// Whether it ends as aborted when its last row is over.
    pub aborted: bool,
    /// Whether its end was reported, while a row of it is in the newest step.
    pub over: bool,
    /// Whether it was preempted in the step that is being planned.
    pub preempted_now: bool,
    pub reads_cache: bool,
    /// Number of preemptions.
    pub preemptions: u32,
    pub eos: Vec<u32>,
    pub stop_token_ids: Vec<u32>,
    /// Prompt and output tokens so far, with the hashes of their full blocks.
    pub chain: TokenChain,
    /// Drafts: tokens that may follow the chain.
    pub drafts: Vec<u32>,
    pub adapter: Option<Adapter>,
    pub priority: i64,
    pub arrival: Time,
    pub deadline: Option<Time>,
    /// Ticket: number in the order of arrival; negative for a request that was preempted.
    pub ticket: i64,
    /// Rank in the waiting queue, while it is there.
    pub rank: Rank,
    /// Time of the plan that admitted it first.
    pub admitted: Option<Time>,
    /// Time since which the connector has been asked for its keys and values.
    pub asked: Option<Time>,
    /// Load that its last admission began.
    pub loading: Option<Loading>,
    pub job: Option<Job>,
    /// Whether the job was inferred, and this is its first request.
    pub opens_inferred_job: bool,
    /// The job as leases know it.
    pub job_key: Option<JobKey>,
    /// Arrival of the job's first request; without a job, its own.
    pub job_arrival: Time,
    /// The executor's last note on it.
    pub note: Option<Note>,
}

impl Entry {
    pub(crate) fn new(request: Request, chain: TokenChain, ticket: i64) -> Self {
        Self {
            id: request.id,
            prompt_len: request.prompt.len(),
            job_key: request.job_key(),
            job_arrival: request.arrival,
            opens_inferred_job: false,
            note: None,
            chain,
            computed: 0,
            drafts: Vec::new(),
            awaited: 0,
            seat: None,
            seq: None,
            status: Status::Waiting,
            admitted: None,
            asked: None,
            loading: None,
            ticket,
            rank: Rank::default(),
            planned: false,
            in_flight: false,
            aborted: false,
            over: false,
            preemptions: 0,
            preempted_now: false,
            max_tokens: request.max_tokens,
            eos: request.eos,
            stop_token_ids: request.stop_token_ids,
            arrival: request.arrival,
            priority: request.priority,
            deadline: request.deadline,
            adapter: request.adapter,
            reads_cache: !request.skip_reading_prefix_cache,
            job: request.job,
        }
    }

    /// Number of output tokens.
    pub(crate) fn generated(&self) -> usize {
        self.chain.len() - self.prompt_len
    }

    /// Number of tokens, the one included that is being sampled.
    pub(crate) fn num_tokens(&self) -> usize {
        self.chain.len() + self.awaited
    }

    /// Whether a running request decodes: all of its tokens but the last are computed, so its next row is one token
    /// and samples. The last chunk of a prompt can be such a row, too.
    pub(crate) fn decodes(&self) -> bool {
        self.num_tokens() == self.computed + 1
    }

    /// Whether a step that is not over writes to its blocks.
    pub(crate) fn in_step(&self) -> bool {
        self.planned || self.in_flight
    }

    /// Load that has not arrived yet: its blocks are being written.
    pub(crate) fn load_in_flight(&self) -> Option<Loading> {
        self.loading.filter(|loading| self.status == Status::WaitingForKv && !loading.arrived)
    }

    pub(crate) fn view(&self) -> RequestView<'_> {
        RequestView { entry: self }
    }
}

/// Read access to a request, for policies, executors and observers.
#[derive(Clone, Copy, Debug)]
pub struct RequestView<'a> {
    entry: &'a Entry,
}

impl<'a> RequestView<'a> {
    /// Request id.
    pub fn id(&self) -> RequestId {
        self.entry.id
    }

    /// State of the request.
    pub fn status(&self) -> Status {
        self.entry.status
    }

    /// Seat of a running request.
    pub fn seat(&self) -> Option<Seat> {
        self.entry.seat
    }

    /// Ticket: number in the order of arrival. A preempted request gets a ticket below all others.
    pub fn ticket(&self) -> i64 {
        self.entry.ticket
    }

    /// Time of arrival.
    pub fn arrival(&self) -> Time {
        self.entry.arrival
    }

    /// Time of the plan in which it got its first row, if it has been admitted.
    pub fn admitted(&self) -> Option<Time> {
        self.entry.admitted
    }

    /// Priority: a lower value runs earlier.
    pub fn priority(&self) -> i64 {
        self.entry.priority
    }

    /// Time by which it should be finished.
    pub fn deadline(&self) -> Option<Time> {
        self.entry.deadline
    }

    /// LoRA adapter.
    pub fn adapter(&self) -> Option<&'a Adapter> {
        self.entry.adapter.as_ref()
    }

    /// Step of an agent's job that it is.
    pub fn job(&self) -> Option<&'a Job> {
        self.entry.job.as_ref()
    }

    /// Key of that job.
    pub fn job_key(&self) -> Option<&'a JobKey> {
        self.entry.job_key.as_ref()
    }

    /// Arrival of the first request of its job, as far as the scheduler remembers the job; its own if it is a step of
    /// no job. The scheduler remembers all jobs with unfinished requests, and of those without the 4,096 that ended a step
    /// last (fewer if their ids and tenants have more than 1 MiB together). It forgets a job after its last step.
    pub fn job_arrival(&self) -> Time {
        self.entry.job_arrival
    }

    /// Number of prompt tokens.
    pub fn prompt_len(&self) -> usize {
        self.entry.prompt_len
    }

    /// Number of prompt and output tokens.
    pub fn num_tokens(&self) -> usize {
        self.entry.chain.len()
    }

    /// Prompt and output tokens.
    pub fn tokens(&self) -> &'a [u32] {
        self.entry.chain.tokens()
    }

    /// Number of tokens whose keys and values are in its blocks.
    pub fn num_computed(&self) -> usize {
        self.entry.computed
    }

    /// Drafts for its next step: tokens that may follow [`RequestView::tokens`].
    pub fn drafts(&self) -> &'a [u32] {
        &self.entry.drafts
    }

    /// Whether a running request decodes: all of its tokens but the last are computed. If not, it prefills.
    pub fn decodes(&self) -> bool {
        self.entry.decodes()
    }

    /// Maximum number of output tokens.
    pub fn max_tokens(&self) -> usize {
        self.entry.max_tokens
    }

    /// Whether its end was reported, though a step that it has a row in is not over.
    pub fn has_ended(&self) -> bool {
        self.entry.over
    }

    /// Number of preemptions.
    pub fn preemptions(&self) -> u32 {
        self.entry.preemptions
    }

    /// Whether it was preempted in the step that is being planned.
    pub fn preempted_now(&self) -> bool {
        self.entry.preempted_now
    }
}

/// All unfinished requests, by key and by id. Keys are small numbers, and are reused.
#[derive(Debug, Default)]
pub(crate) struct Requests {
    entries: Vec<Option<Entry>>,
    vacant: Vec<u32>,
    by_id: HashMap<RequestId, u32>,
    jobs: Jobs,
    /// Ids of requests whose end has not been reported yet.
    ended: HashSet<RequestId>,
}

impl Requests {
    /// Number of unfinished requests.
    pub(crate) fn len(&self) -> usize {
        self.by_id.len()
    }

    pub(crate) fn find(&self, id: RequestId) -> Option<u32> {
        self.by_id.get(&id).copied()
    }

    /// Whether a new request cannot have this id: another one has it, or had it and its end is yet to be reported.
    pub(crate) fn uses(&self, id: RequestId) -> bool {
        self.by_id.contains_key(&id) || self.ended.contains(&id)
    }

    pub(crate) fn insert(&mut self, entry: Entry) -> u32 {
        let (id, job, arrival) = (entry.id, entry.job_key.clone(), entry.arrival);
        let key = match self.vacant.pop() {
            Some(key) => {
                self.entries[key as usize] = Some(entry);
                key
            }
            None => {
                self.entries.push(Some(entry));
                (self.entries.len() - 1) as u32
            }
        };
        self.by_id.insert(id, key);
        if let Some(job) = job {
            self.at_mut(key).job_arrival = self.jobs.begin_step(&job, key, arrival);
        }
        key
    }

    /// Removes a request. Its id is not free before [`Requests::release_id`].
    pub(crate) fn remove(&mut self, key: u32) -> Option<Entry> {
        self.retire(key);
        let entry = self.entries.get_mut(key as usize)?.take()?;
        self.vacant.push(key);
        Some(entry)
    }

    /// Takes a request whose end is to be reported out of all that is found by names: its id and its job.
    pub(crate) fn retire(&mut self, key: u32) {
        let Self { entries, by_id, jobs, ended, .. } = self;
        let Some(Some(entry)) = entries.get(key as usize) else { return };
        // Once the end of a request is reported, another one can have its id.
        if by_id.get(&entry.id) != Some(&key) {
            return;
        }
        by_id.remove(&entry.id);
        ended.insert(entry.id);
        if let (Some(job), Some(job_key)) = (&entry.job, &entry.job_key) {
            jobs.end_step(job_key, key, job.last_step);
        }
    }

    /// The end of the request that had this id has been reported.
    pub(crate) fn release_id(&mut self, id: RequestId) {
        self.ended.remove(&id);
    }

    /// Unfinished requests of a job, in the order of arrival.
    pub(crate) fn steps(&self, job: &JobKey) -> &[u32] {
        self.jobs.steps(job)
    }

    /// Number of jobs that have unfinished requests, or whose first arrival is remembered.
    pub(crate) fn num_jobs(&self) -> usize {
        self.jobs.len()
    }

    /// Whether a step of this job waits.
    pub(crate) fn waits(&self, job: &JobKey) -> bool {
        self.steps(job).iter().any(|key| {
            let entry = self.at(*key);
            entry.status != Status::Running && !entry.aborted
        })
    }

    /// The request with this key, if there is one.
    pub(crate) fn get_mut(&mut self, key: u32) -> Option<&mut Entry> {
        self.entries.get_mut(key as usize)?.as_mut()
    }

    /// # Panics
    /// At a key without a request: keys come from this table, and a request that ends leaves all lists.
    pub(crate) fn at(&self, key: u32) -> &Entry {
        self.entries[key as usize].as_ref().expect("a key in a list is that of a request")
    }

    /// # Panics
    /// As [`Requests::at`].
    pub(crate) fn at_mut(&mut self, key: u32) -> &mut Entry {
        self.entries[key as usize].as_mut().expect("a key in a list is that of a request")
    }
}
