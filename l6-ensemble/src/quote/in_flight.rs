//! The requests of a replica from admission to their end, as the door knows them.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use l5_scheduler::{PolicyKind, Rank, RequestId, Time};

use super::overtaking::Arrivals;
use super::{OutputLengths, RequestSize};

/// Number of steps over which their width is averaged.
const WIDTH_STEPS: f64 = 64.0;

/// Weight of an arrival in the mean wait for the turn.
const TURN_WEIGHT: f64 = 1.0 / 32.0;

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
    /// Seconds that a step waited for its turn when the request arrived
    /// ([`LaneView::turn_seconds`](crate::admission::LaneView::turn_seconds)).
    pub turn_seconds: f64,
}

/// State of a request in flight.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    pub admitted: Admitted,
    pub rank: Rank,
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
    lengths: OutputLengths,
    arrivals: Arrivals,
    /// Mean number of requests that decode in a step.
    width: Option<f64>,
    /// Mean wait for the turn on a shared device, as the arrivals met it.
    turn: f64,
    /// Mean number of tokens that a request holds in the pool, over its life.
    held_tokens: Option<f64>,
    /// Begin of the step that runs, as far as it can be known: the end of the last step.
    step_began: Time,
}

impl InFlight {
    /// Creates the account of a replica without requests, whose scheduler has this policy.
    pub fn new(policy: PolicyKind) -> Self {
        Self {
            policy,
            requests: HashMap::new(),
            waiting: BTreeMap::new(),
            decoding: BTreeSet::new(),
            lengths: OutputLengths::default(),
            arrivals: Arrivals::default(),
            width: None,
            turn: 0.0,
            held_tokens: None,
            step_began: Time::ZERO,
        }
    }

    /// Position of a request in the queue of a scheduler with this policy.
    pub(crate) fn rank(&self, id: RequestId, request: &Admitted) -> Rank {
        let (arrival, tie) = (request.arrival, id.0 as i64);
        let first_come = Rank { arrival, tie, ..Rank::default() };
        match self.policy {
            PolicyKind::Fcfs => first_come,
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
        self.arrivals.add(request);
        self.turn += TURN_WEIGHT * (request.turn_seconds - self.turn);
        let rank = self.rank(id, &request);
        self.waiting.insert(rank, id);
        self.requests.insert(id, Entry { admitted: request, rank, output: 0, last: now });
    }

    /// Notes that a request has `output` tokens in all at `now`, the end of a step.
    pub fn output(&mut self, id: RequestId, output: usize, now: Time) {
        let Some(entry) = self.requests.get_mut(&id).filter(|entry| entry.output < output) else {
            return;
        };
        let first = entry.output == 0;
        (entry.output, entry.last) = (output, now);
        self.step_began = self.step_began.max(now);
        if first {
            self.waiting.remove(&entry.rank);
            self.decoding.insert(id);
            return;
        }
        // Every request of a step reports its output, so each has a part of the step's weight.
        let width = self.decoding.len() as f64;
        let mean = self.width.get_or_insert(width);
        *mean += (width - *mean) / (WIDTH_STEPS * width.max(1.0));
    }

    /// Notes the end of a request. `completed`: it has got its whole output, and was not aborted.
    pub fn end(&mut self, id: RequestId, completed: bool) {
        let Some(entry) = self.requests.remove(&id) else { return };
        self.waiting.remove(&entry.rank);
        self.decoding.remove(&id);
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

    /// Deadline, in seconds from its arrival, before which a later request must be due to be ahead of this one: minus
    /// infinity for one that is ahead in any case. `None` for one that never is.
    pub(crate) fn overtakes(&self, later: &Admitted, priority: i64) -> Option<f64> {
        match self.policy {
            PolicyKind::Fcfs => None,
            _ if later.priority < priority => Some(f64::NEG_INFINITY),
            PolicyKind::StrictPriority if later.priority == priority => {
                later.deadline.map(|deadline| deadline - later.arrival)
            }
            _ => None,
        }
    }

    /// Requests that were admitted last.
    pub(crate) fn arrivals(&self) -> &Arrivals {
        &self.arrivals
    }

    /// Mean number of requests that decode in a step; `None` before the first decode step.
    pub(crate) fn mean_width(&self) -> Option<f64> {
        self.width
    }

    /// Mean wait for the turn on a shared device, as the arrivals met it.
    pub(crate) fn mean_turn(&self) -> f64 {
        self.turn
    }

    /// Mean number of tokens that a request holds in the pool.
    pub(crate) fn held_tokens(&self) -> Option<f64> {
        self.held_tokens
    }

    /// Begin of the step that runs.
    pub(crate) fn step_began(&self) -> Time {
        self.step_began
    }
}
