//! The requests that are there: a slab, so that a request is found by a number and a place is used again.

use std::collections::HashMap;

use l3_paged_kv::{SeqId, TokenChain};

use crate::{Adapter, Job, Rank, Request, RequestId, Time};

/// Where a request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// In the queue, not begun yet or preempted.
    Waiting,
    /// It has blocks whose contents are on their way from elsewhere.
    WaitingForKv,
    /// It has blocks and a seat.
    Running,
}

/// Keys and values that are fetched from elsewhere: those of tokens `from..to`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Loading {
    pub from: usize,
    pub to: usize,
    pub arrived: bool,
}

/// One request's bookkeeping.
#[derive(Debug)]
pub(crate) struct Entry {
    pub id: RequestId,
    /// Prompt and answer so far, with the hashes of their full blocks.
    pub chain: TokenChain,
    pub prompt_len: usize,
    /// Tokens whose keys and values are in its blocks.
    pub computed: usize,
    /// Its blocks, while it has any.
    pub seq: Option<SeqId>,
    pub status: Status,
    /// What was fetched for it when it was admitted last.
    pub loading: Option<Loading>,
    /// Its number in the order of arrival; negative for one that goes back to the front.
    pub ticket: i64,
    /// Its place in the queue, while it is there.
    pub rank: Rank,
    /// Whether it has a row in the open step.
    pub planned: bool,
    /// To be ended when the open step is over.
    pub aborted: bool,
    /// How often it was preempted.
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

    /// Tokens of its answer.
    pub(crate) fn generated(&self) -> usize {
        self.chain.len() - self.prompt_len
    }

    /// What is being fetched for it: somebody writes into its blocks.
    pub(crate) fn in_flight(&self) -> Option<Loading> {
        self.loading.filter(|loading| self.status == Status::WaitingForKv && !loading.arrived)
    }

    pub(crate) fn view(&self) -> RequestView<'_> {
        RequestView { entry: self }
    }
}

/// What policies and observers may see of a request.
#[derive(Clone, Copy, Debug)]
pub struct RequestView<'a> {
    entry: &'a Entry,
}

impl<'a> RequestView<'a> {
    /// Its name.
    pub fn id(&self) -> RequestId {
        self.entry.id
    }

    /// Where it is.
    pub fn status(&self) -> Status {
        self.entry.status
    }

    /// Its number in the order of arrival; a preempted request has one below all others.
    pub fn ticket(&self) -> i64 {
        self.entry.ticket
    }

    /// When it came.
    pub fn arrival(&self) -> Time {
        self.entry.arrival
    }

    /// How urgent it is: lower goes first.
    pub fn priority(&self) -> i64 {
        self.entry.priority
    }

    /// When it should be done.
    pub fn deadline(&self) -> Option<Time> {
        self.entry.deadline
    }

    /// Its adapter.
    pub fn adapter(&self) -> Option<&'a Adapter> {
        self.entry.adapter.as_ref()
    }

    /// The longer job that it is a step of.
    pub fn job(&self) -> Option<&'a Job> {
        self.entry.job.as_ref()
    }

    /// Tokens of its prompt.
    pub fn prompt_len(&self) -> usize {
        self.entry.prompt_len
    }

    /// Tokens of prompt and answer.
    pub fn num_tokens(&self) -> usize {
        self.entry.chain.len()
    }

    /// Prompt and answer.
    pub fn tokens(&self) -> &'a [u32] {
        self.entry.chain.tokens()
    }

    /// Tokens whose keys and values it has.
    pub fn num_computed(&self) -> usize {
        self.entry.computed
    }

    /// The most tokens of its answer.
    pub fn max_tokens(&self) -> usize {
        self.entry.max_tokens
    }

    /// How often it was preempted.
    pub fn preemptions(&self) -> u32 {
        self.entry.preemptions
    }

    /// Whether it was preempted in the step that is being planned.
    pub fn preempted_now(&self) -> bool {
        self.entry.preempted_now
    }
}

/// All of them, by place and by name.
#[derive(Debug, Default)]
pub(crate) struct Requests {
    places: Vec<Option<Entry>>,
    vacant: Vec<u32>,
    by_id: HashMap<RequestId, u32>,
}

impl Requests {
    /// Requests that have not ended.
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

    /// The request is gone. Its place is not given away before [`Requests::vacate`].
    pub(crate) fn remove(&mut self, place: u32) -> Option<Entry> {
        let entry = self.places.get_mut(place as usize)?.take()?;
        self.by_id.remove(&entry.id);
        Some(entry)
    }

    /// Everybody who knows the place has been told that its request is gone: it may be somebody else's.
    pub(crate) fn vacate(&mut self, place: u32) {
        self.vacant.push(place);
    }

    /// # Panics
    /// At a place that nobody has: places come from this slab, and whoever ends leaves all lists.
    pub(crate) fn at(&self, place: u32) -> &Entry {
        self.places[place as usize].as_ref().expect("a place in a list is somebody's")
    }

    /// # Panics
    /// As [`Requests::at`].
    pub(crate) fn at_mut(&mut self, place: u32) -> &mut Entry {
        self.places[place as usize].as_mut().expect("a place in a list is somebody's")
    }
}
