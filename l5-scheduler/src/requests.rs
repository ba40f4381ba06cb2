//! Table of the unfinished requests: a slab, so that indices are small and are reused.

use std::collections::HashMap;

use l3_paged_kv::{SeqId, TokenChain};

use crate::{Adapter, Job, Rank, Request, RequestId, Time};

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
#[derive(Debug)]
pub(crate) struct Entry {
    pub id: RequestId,
    /// Prompt and output tokens so far, with the hashes of their full blocks.
    pub chain: TokenChain,
    pub prompt_len: usize,
    /// Number of tokens whose keys and values are in its blocks.
    pub computed: usize,
    /// Sequence that owns its blocks; `None` without blocks.
    pub seq: Option<SeqId>,
    pub status: Status,
    /// Load that its last admission began.
    pub loading: Option<Loading>,
    /// Ticket: number in the order of arrival; negative for a request that was preempted.
    pub ticket: i64,
    /// Rank in the waiting queue, while it is there.
    pub rank: Rank,
    /// Whether it has a row in the open step.
    pub planned: bool,
    /// Whether it ends as aborted when the open step is over.
    pub aborted: bool,
    /// Number of preemptions.
    pub preemptions: u32,
    /// Whether it was preempted in the step that is being planned.
    pub preempted_now: bool,
    pub max_tokens: usize,
    pub eos: Vec<u32>,
    pub stop_token_ids: Vec<u32>,
    pub arrival: Time,
    pub priority: i64,
    pub deadline: Option<Time>,
    pub adapter: Option<Adapter>,
    pub reads_cache: bool,
    pub job: Option<Job>,
}

impl Entry {
    pub(crate) fn new(request: Request, chain: TokenChain, ticket: i64) -> Self {
        Self {
            id: request.id,
            prompt_len: request.prompt.len(),
            chain,
            computed: 0,
            seq: None,
            status: Status::Waiting,
            loading: None,
            ticket,
            rank: Rank::default(),
            planned: false,
            aborted: false,
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

    /// Load that has not arrived yet: its blocks are being written.
    pub(crate) fn in_flight(&self) -> Option<Loading> {
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

    /// Ticket: number in the order of arrival. A preempted request gets a ticket below all others.
    pub fn ticket(&self) -> i64 {
        self.entry.ticket
    }

    /// Time of arrival.
    pub fn arrival(&self) -> Time {
        self.entry.arrival
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

    /// Maximum number of output tokens.
    pub fn max_tokens(&self) -> usize {
        self.entry.max_tokens
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

/// All unfinished requests, by table index (`place`) and by id.
#[derive(Debug, Default)]
pub(crate) struct Requests {
    places: Vec<Option<Entry>>,
    vacant: Vec<u32>,
    by_id: HashMap<RequestId, u32>,
}

impl Requests {
    /// Number of unfinished requests.
    pub(crate) fn len(&self) -> usize {
        self.by_id.len()
    }

    pub(crate) fn find(&self, id: RequestId) -> Option<u32> {
        self.by_id.get(&id).copied()
    }

    pub(crate) fn insert(&mut self, entry: Entry) -> u32 {
        let id = entry.id;
        let place = match self.vacant.pop() {
            Some(place) => {
                self.places[place as usize] = Some(entry);
                place
            }
            None => {
                self.places.push(Some(entry));
                (self.places.len() - 1) as u32
            }
        };
        self.by_id.insert(id, place);
        place
    }

    /// Removes a request. Its index is not reused before [`Requests::vacate`].
    pub(crate) fn remove(&mut self, place: u32) -> Option<Entry> {
        let entry = self.places.get_mut(place as usize)?.take()?;
        self.by_id.remove(&entry.id);
        Some(entry)
    }

    /// Allows the index to be reused: the executor has been told that its request has ended.
    pub(crate) fn vacate(&mut self, place: u32) {
        self.vacant.push(place);
    }

    /// # Panics
    /// At an index without a request: indices come from this table, and a request that ends leaves all lists.
    pub(crate) fn at(&self, place: u32) -> &Entry {
        self.places[place as usize].as_ref().expect("an index in a list is that of a request")
    }

    /// # Panics
    /// As [`Requests::at`].
    pub(crate) fn at_mut(&mut self, place: u32) -> &mut Entry {
        self.places[place as usize].as_mut().expect("an index in a list is that of a request")
    }
}
