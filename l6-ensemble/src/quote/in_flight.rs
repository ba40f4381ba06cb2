//! The requests of a replica from admission to their end, as the door knows them.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use l5_scheduler::{PolicyKind, Rank, RequestId, Scheduler, Time};

use super::arrivals::Arrivals;
use super::overtaking::Overtaking;
use super::{OutputLengths, RequestSize};

/// Weight of a request that has ended in the mean number of tokens that a request holds.
const TOKENS_WEIGHT: f64 = 1.0 / 64.0;

/// A request that the door has admitted.
#[derive(Clone, Copy, Debug, Default)]
pub struct Admitted {
    /// Time of arrival.
    pub arrival: Time,
    /// Priority: a lower number is more urgent.
    pub priority: i64,
    /// Time by which it should be finished.
    pub deadline: Option<Time>,
    /// Its tokens.
    pub size: RequestSize,
    /// What it was promised ([`Quote::first_token_range`](super::Quote::first_token_range)).
    pub first_token_range: [Duration; 2],
    /// Number of requests that were in flight on the machine when it arrived ([`Quote::beside`](super::Quote::beside)).
    pub beside: usize,
    /// Whether its quote met its deadline. The door keeps what it has promised, and no more: it refuses no others for
    /// the sake of a request that was to be late.
    pub in_time: bool,
}

/// State of a request in flight.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    pub admitted: Admitted,
    pub rank: Rank,
    /// Prompt tokens whose keys and values are computed, or were found in the prefix cache.
    pub prefilled: usize,
    /// Output tokens so far, and the time of the last one.
    pub output: usize,
    pub last: Time,
}

/// The requests of one replica, from their admission to their end, and what has been learned from them.
///
/// The owner reports every admission, output and end with the time of its clock. A quote is computed from this and the
/// replica's [`Load`](l5_scheduler::Load): the load has the rates, and here are the requests. So a quote needs no lock
/// of the engine, and a remote replica needs to publish no more than its load. The memory is bounded by the number of
/// requests that the replica accepts.
///
/// A request waits until its first output token and decodes afterwards. One that had no token in the last step,
/// although others had, was preempted, and waits again.
#[derive(Clone, Debug)]
pub struct InFlight {
    policy: PolicyKind,
    requests: HashMap<RequestId, Entry>,
    /// Requests without an output token, in the order in which the policy admits them.
    waiting: BTreeMap<Rank, RequestId>,
    decoding: BTreeSet<RequestId>,
    /// Requests of which a part of the prompt is computed.
    prefilling: Vec<RequestId>,
    lengths: OutputLengths,
    arrivals: Arrivals,
    overtaking: Overtaking,
    /// Mean number of tokens that a request holds in the pool, over its life.
    held_tokens: Option<f64>,
    /// Begin of the step that runs, as far as it can be known: the end of the last step.
    step_began: Time,
    /// End of the last step.
    last_step: Time,
}

impl InFlight {
    /// Creates the account of a replica without requests, whose scheduler has this policy.
    pub fn new(policy: PolicyKind) -> Self {
        Self {
            policy,
            requests: HashMap::new(),
            waiting: BTreeMap::new(),
            decoding: BTreeSet::new(),
            prefilling: Vec::new(),
            lengths: OutputLengths::default(),
            arrivals: Arrivals::default(),
            overtaking: Overtaking::default(),
            held_tokens: None,
            step_began: Time::ZERO,
            last_step: Time::ZERO,
        }
    }

    /// Position of a request in the queue of a scheduler with this policy.
    pub(crate) fn rank(&self, id: RequestId, request: &Admitted) -> Rank {
        let (arrival, tie) = (request.arrival, id.0 as i64);
        let first_come = Rank { arrival, tie, ..Rank::default() };
        match self.policy {
            // That a job has a lease is not known here.
            PolicyKind::Fcfs
            | PolicyKind::Continuum
            | PolicyKind::ContextServe
            | PolicyKind::LmCache
            | PolicyKind::Adaptive => first_come,
            PolicyKind::Priority => Rank { class: request.priority, ..first_come },
            PolicyKind::StrictPriority => {
                let deadline = request.deadline.unwrap_or(Time(f64::INFINITY));
                Rank { class: request.priority, deadline, ..first_come }
            }
        }
    }

    /// Notes a request that was admitted at `now`. Ids are unique among the requests in flight; a second admission of
    /// one replaces the first.
    pub fn admit(&mut self, id: RequestId, request: Admitted, now: Time) {
        self.end(id, false);
        if self.requests.is_empty() {
            self.step_began = now;
        }
        self.arrivals.add(id, request);
        let rank = self.rank(id, &request);
        self.waiting.insert(rank, id);
        let entry = Entry { admitted: request, rank, prefilled: 0, output: 0, last: now };
        self.requests.insert(id, entry);
    }

    /// Notes how much of the prompts is computed, at the end of a step. A scheduler that is not at hand, such as that of a
    /// remote server, need not be reported: the forecast supposes then that nothing of a prompt is computed before the
    /// first token.
    pub fn prefilled(&mut self, scheduler: &Scheduler) {
        // One that was preempted begins again.
        for id in self.prefilling.drain(..) {
            self.requests.entry(id).and_modify(|entry| entry.prefilled = 0);
        }
        for request in scheduler.running().filter(|request| !request.decodes()) {
            if let Some(entry) = self.requests.get_mut(&request.id()) {
                entry.prefilled = request.num_computed();
                self.prefilling.push(request.id());
            }
        }
    }

    /// Notes that a request has `output` tokens in all at `now`, the end of a step.
    pub fn output(&mut self, id: RequestId, output: usize, now: Time) {
        let Some(entry) = self.requests.get_mut(&id).filter(|entry| entry.output < output) else {
            return;
        };
        let first = entry.output == 0;
        (entry.output, entry.last) = (output, now);
        self.step_began = self.step_began.max(now);
        self.last_step = self.last_step.max(now);
        if first {
            self.overtaking.add(
                entry.admitted.priority,
                entry.admitted.first_token_range,
                now - entry.admitted.arrival,
            );
            self.waiting.remove(&entry.rank);
            self.decoding.insert(id);
        }
    }

    /// Notes the end of a request. `completed`: it has got its whole output, and was not aborted.
    pub fn end(&mut self, id: RequestId, completed: bool) {
        let Some(entry) = self.requests.remove(&id) else { return };
        self.waiting.remove(&entry.rank);
        self.decoding.remove(&id);
        self.arrivals.end(id, entry.last.max(self.last_step), entry.output);
        if !completed {
            return;
        }
        let size = entry.admitted.size;
        self.lengths.add(entry.output, size.max_tokens);
        let held = size.prompt_tokens as f64 + 0.5 * entry.output as f64;
        let mean = self.held_tokens.get_or_insert(held);
        *mean += TOKENS_WEIGHT * (held - *mean);
    }

    /// Number of requests in flight.
    pub fn len(&self) -> usize {
        self.requests.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// Output lengths that were learned.
    pub fn lengths(&self) -> &OutputLengths {
        &self.lengths
    }

    /// Requests without an output token, in the order of the queue.
    pub(crate) fn waiting(&self) -> impl Iterator<Item = (RequestId, &Entry)> {
        self.waiting.values().filter_map(|id| Some((*id, self.requests.get(id)?)))
    }

    /// Requests that decode, in the order of their ids.
    pub(crate) fn decoding(&self) -> impl Iterator<Item = (RequestId, &Entry)> {
        self.decoding.iter().filter_map(|id| Some((*id, self.requests.get(id)?)))
    }

    /// Whether a waiting request of a scheduler with this policy preempts less urgent ones.
    pub(crate) fn preempts(&self) -> bool {
        self.policy == PolicyKind::StrictPriority
    }

    /// How far later requests delay those that they overtake.
    pub(crate) fn overtaking(&self) -> &Overtaking {
        &self.overtaking
    }

    /// Requests that were admitted last.
    pub(crate) fn arrivals(&self) -> &Arrivals {
        &self.arrivals
    }

    /// Mean number of tokens that a request holds in the pool.
    pub(crate) fn held_tokens(&self) -> Option<f64> {
        self.held_tokens
    }

    /// Begin of the step that runs.
    pub(crate) fn step_began(&self) -> Time {
        self.step_began
    }

    /// End of the last step.
    pub(crate) fn last_step(&self) -> Time {
        self.last_step
    }
}
