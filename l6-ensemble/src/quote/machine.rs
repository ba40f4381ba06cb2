//! The lanes that share a machine, from now on.
//!
//! A machine runs one step at a time. A lane plans its next step when the last one has ended, and queues it behind the
//! planned steps of the other lanes. So the machine works in *rounds*: in each, every lane that has requests runs one
//! step. While the same requests run, all rounds are alike: a request that decodes gets one token, and the round takes
//! as long as the steps of all lanes together. Rounds are therefore counted in fractions, as a clock, and the machine
//! goes from event to event: a request arrives, has its first token, ends, or a step has more or fewer tokens of prompts
//! than the last one. Between two events the clock runs at a constant rate, `seconds = rounds * (sum of the steps)`. This
//! is processor sharing between the lanes, and within a lane the recursion of Kiefer and Wolfowitz (1955, "On the theory
//! of queues with many servers"): a request takes the seat that is free first, in the order of the policy.
//!
//! A scheduler decides at the begin of a step who takes part in it, and so does the machine. Long prompts take several
//! steps (*chunked prefill*): a step computes as many of their tokens as its budget has left, one prompt after the other,
//! and a request that would get none of them waits without a seat. A request that arrives in the meantime may overtake it.
//!
//! The cost is that of the requests, a few events for each, and not that of their tokens.

mod lane;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

use l5_scheduler::Time;

use self::lane::Lane;
use super::work::{Job, LaneWork};

/// Maximum number of events that are run. It bounds the time at the door; requests that have not ended by then count
/// as never ending.
const MAX_EVENTS: usize = 20_000;

/// Fraction of a step that is only rounding.
const EPSILON: f64 = 1e-9;

/// Times of a request in seconds from now; infinite while they are not reached.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Times {
    /// Begin of its first step.
    pub begin: f64,
    pub first_token: f64,
    pub done: f64,
}

impl Times {
    const NEVER: Self =
        Self { begin: f64::INFINITY, first_token: f64::INFINITY, done: f64::INFINITY };
}

/// A request that will arrive.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arrival {
    /// Seconds from now.
    pub at: f64,
    pub lane: usize,
    pub job: Job,
}

/// Number of a request in a run.
type Number = usize;

/// The lanes of a machine while their steps run.
#[derive(Clone)]
pub(crate) struct Machine {
    lanes: Vec<Lane>,
    requests: Vec<Request>,
    /// Ends of requests, and changes of prompts to come.
    events: BinaryHeap<Reverse<Event>>,
    /// Seconds and rounds from now.
    now: f64,
    rounds: f64,
    /// Seconds of a round.
    round: f64,
    /// Number of requests that are waited for.
    left: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Waits,
    Prefills,
    Decodes,
    Ended,
}

#[derive(Clone, Copy, Debug)]
struct Request {
    job: Job,
    lane: usize,
    state: State,
    times: Times,
    /// Rounds of its next event: an event of other rounds is one of before a preemption.
    next: f64,
    awaited: bool,
}

/// The rounds of an event, and what it happens to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Event(Time, Of);

/// The prompts of a lane change after its requests: those may give seats and tokens of the step to others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Of {
    /// A request ends.
    Request(Number),
    /// A step of a lane begins with other prompts than the last one.
    Prompts(usize),
}

impl Machine {
    /// The state at `now`: the planned steps, of which the first one runs.
    pub(crate) fn new(lanes: &[Cow<'_, LaneWork>], now: Time) -> Self {
        let requests: usize =
            lanes.iter().map(|work| work.running.len() + work.waiting.len()).sum();
        let mut machine = Self {
            lanes: Vec::with_capacity(lanes.len()),
            requests: Vec::with_capacity(2 * requests + 16),
            events: BinaryHeap::with_capacity(2 * requests + 16),
            now: 0.0,
            rounds: 0.0,
            round: 0.0,
            left: 0,
        };
        for (lane, work) in lanes.iter().enumerate() {
            machine.lanes.push(Lane::new(work));
            for job in work.running.iter().chain(&work.waiting) {
                machine.add(lane, *job);
            }
        }
        machine.set_phases(lanes, now);
        let mut number = 0;
        for (lane, work) in lanes.iter().enumerate() {
            let last_end = machine.lanes[lane].phase - 1.0;
            for at in 0..work.running.len() + work.waiting.len() {
                let before = machine.lanes[lane].step();
                let state = &mut machine.lanes[lane];
                let request = &mut machine.requests[number];
                let has_seat = state.seated.len() < state.seats;
                if at < work.running.len() && has_seat {
                    state.seated.push(number);
                    request.times.begin = 0.0;
                    let steps = request.job.steps();
                    machine.decode(number, last_end, steps);
                } else if request.job.prefills && has_seat {
                    machine.prefill(number, last_end);
                } else {
                    state.waiting.push(Reverse((request.job.rank, number)));
                }
                machine.round += machine.lanes[lane].step() - before;
                number += 1;
            }
            // Those that came before the planned step are in it.
            machine.seat(lane, last_end, true);
            machine.prompts(lane, last_end);
            if !machine.lanes[lane].waiting.is_empty() {
                machine.wake(lane, last_end + 1.0);
            }
        }
        machine
    }

    /// Sets the fractions of a round after which the steps of the lanes end.
    fn set_phases(&mut self, lanes: &[Cow<'_, LaneWork>], now: Time) {
        let mut order: Vec<usize> = (0..lanes.len()).filter(|at| lanes[*at].is_busy()).collect();
        order.sort_by_key(|at| lanes[*at].asked);
        let steps: Vec<f64> = order.iter().map(|at| lanes[*at].planned_step()).collect();
        let Some(first) = order.first() else { return };
        // The first step runs since the last one ended, or since its lane asked for it.
        let ended = lanes.iter().map(|work| work.last_step).max().unwrap_or(now);
        let elapsed = (now - ended.max(lanes[*first].asked)).clamp(0.0, steps[0]);
        let round: f64 = steps.iter().sum();
        let mut end = -elapsed;
        for (at, step) in order.iter().zip(&steps) {
            end += step;
            self.lanes[*at].phase = if round > 0.0 { end / round } else { 1.0 };
        }
    }

    fn add(&mut self, lane: usize, job: Job) -> Number {
        let state = &mut self.lanes[lane];
        state.is_mixed |= *state.priority.get_or_insert(job.priority) != job.priority;
        self.requests.push(Request {
            job,
            lane,
            state: State::Waits,
            times: Times::NEVER,
            next: f64::INFINITY,
            awaited: false,
        });
        self.requests.len() - 1
    }

    /// Adds a request that arrives at this moment. Returns its number.
    pub(crate) fn arrive(&mut self, lane: usize, job: Job) -> Number {
        let number = self.add(lane, job);
        let state = &mut self.lanes[lane];
        state.waiting.push(Reverse((job.rank, number)));
        let at = if state.seated.is_empty() {
            // Its step is planned at once, behind one of each lane.
            state.phase = self.rounds.fract();
            self.rounds
        } else {
            state.next_end(self.rounds)
        };
        self.wake(lane, at);
        number
    }

    /// Requests so far. The first are those of the lanes, in their order: running, then waiting.
    pub(crate) fn job(&self, number: Number) -> Option<&Job> {
        self.requests.get(number).map(|request| &request.job)
    }

    /// Runs until this request has ended.
    pub(crate) fn wait_for(&mut self, number: Number) {
        if let Some(request) = self.requests.get_mut(number).filter(|request| !request.awaited) {
            request.awaited = true;
            self.left += 1;
        }
    }

    /// Times of a request.
    pub(crate) fn times(&self, number: Number) -> Times {
        self.requests.get(number).map_or(Times::NEVER, |request| request.times)
    }

    /// Seconds until so many rounds have passed, if nothing changes.
    fn seconds(&self, rounds: f64) -> f64 {
        (self.now + (rounds - self.rounds) * self.round).max(0.0)
    }

    /// Gives free seats to waiting requests, whose prompts are computed from the step on that begins at `at`. Prompts
    /// are computed one after the other, and a request has its seat in the first step that has tokens left for it.
    /// `joined`: only those that may be in the planned step.
    fn seat(&mut self, lane: usize, at: f64, joined: bool) {
        let before = self.lanes[lane].step();
        while let Some(&Reverse((_, number))) = self.lanes[lane].waiting.peek() {
            let (state, job) = (&self.lanes[lane], self.requests[number].job);
            let is_full = state.prompt_left() >= state.budget();
            if is_full || joined && !job.joined || !self.has_seat(lane, job.priority, at) {
                break;
            }
            self.lanes[lane].waiting.pop();
            self.prefill(number, at);
        }
        self.round += self.lanes[lane].step() - before;
    }

    /// Lets a request take a seat, and its prompt be computed behind the prompts that have seats.
    fn prefill(&mut self, number: Number, at: f64) {
        let begin = self.seconds(at);
        let request = &mut self.requests[number];
        request.times.begin = request.times.begin.min(begin);
        request.state = State::Prefills;
        let state = &mut self.lanes[request.lane];
        state.seated.push(number);
        state.prefilling.push_back((number, request.job.prompt));
    }

    /// Looks at the prompts of a lane when its step begins at `at`: who has a seat is decided then, and not before.
    fn wake(&mut self, lane: usize, at: f64) {
        let change = &mut self.lanes[lane].change;
        if at < *change {
            *change = at;
            self.events.push(Reverse(Event(Time(at), Of::Prompts(lane))));
        }
    }

    /// A step of a lane begins at `at`. Those whose prompts are computed have their first tokens.
    fn step_begins(&mut self, lane: usize, at: f64) {
        let state = &mut self.lanes[lane];
        let mut tokens = state.prompt_tokens * (at - state.since);
        state.since = at;
        while let Some((number, left)) = self.lanes[lane].prefilling.front_mut() {
            *left -= tokens;
            if *left > EPSILON * tokens.max(1.0) {
                break;
            }
            tokens = -*left;
            let number = *number;
            self.lanes[lane].prefilling.pop_front();
            self.first_token(number, at);
        }
        self.seat(lane, at, false);
        self.prompts(lane, at);
    }

    /// Tokens of prompts in the steps of a lane from `at` on, and when they change next.
    fn prompts(&mut self, lane: usize, at: f64) {
        let state = &mut self.lanes[lane];
        let (left, budget) = (state.prompt_left(), state.budget());
        state.prompt_tokens = left.min(budget);
        let seconds = state.rates.per_prompt_token * state.prompt_tokens;
        self.round += seconds - state.prompt_seconds;
        (state.since, state.prompt_seconds, state.change) = (at, seconds, f64::INFINITY);
        if let Some((_, head)) = state.prefilling.front() {
            // Until the first prompt is computed, or a step has tokens for others.
            let steps = |tokens: f64| (tokens / budget - EPSILON).ceil();
            let steps = steps(*head).min(steps(left) - 1.0);
            self.wake(lane, at + steps.max(1.0));
        }
    }

    /// Whether a request of this priority can have a seat. If so, one is free: that of a less urgent request, if there
    /// was no other.
    fn has_seat(&mut self, lane: usize, priority: i64, at: f64) -> bool {
        let state = &mut self.lanes[lane];
        if state.seated.len() < state.seats {
            return true;
        }
        if !(state.preempts && state.is_mixed) {
            return false;
        }
        // The last request in the order of the policy that decodes.
        let requests = &mut self.requests;
        let seated = state.seated.iter().enumerate();
        let seated = seated.filter(|(_, number)| requests[**number].state == State::Decodes);
        let worst = seated.max_by_key(|(_, number)| requests[**number].job.rank);
        let Some((seat, number)) = worst.map(|(seat, number)| (seat, *number)) else {
            return false;
        };
        let request = &mut requests[number];
        if request.job.priority <= priority {
            return false;
        }
        // Its tokens are computed again, as a prompt.
        let left = (request.next - at).ceil().max(1.0);
        request.job.prompt += (request.job.output - left).max(0.0);
        (request.job.output, request.next, request.state) = (left, f64::INFINITY, State::Waits);
        state.seated.swap_remove(seat);
        state.decoding -= 1;
        state.waiting.push(Reverse((request.job.rank, number)));
        true
    }

    /// Lets a request with a seat decode so many steps after the one that ended at `at`.
    fn decode(&mut self, number: Number, at: f64, steps: u64) {
        let request = &mut self.requests[number];
        let lane = &mut self.lanes[request.lane];
        lane.decoding += 1;
        (request.state, request.next) = (State::Decodes, at + steps as f64);
        self.events.push(Reverse(Event(Time(request.next), Of::Request(number))));
    }

    /// Runs until the requests that are waited for have ended, or nothing is left to do.
    pub(crate) fn run(&mut self, arrivals: impl IntoIterator<Item = Arrival>) {
        let mut arrivals = arrivals.into_iter().peekable();
        for _ in 0..MAX_EVENTS {
            if self.left == 0 {
                return;
            }
            let event = self.events.peek().map(|Reverse(event)| *event);
            let at = event.map_or(f64::INFINITY, |Event(rounds, _)| self.seconds(rounds.seconds()));
            if let Some(arrival) = arrivals.next_if(|arrival| arrival.at <= at) {
                if self.round > 0.0 {
                    self.rounds += ((arrival.at - self.now) / self.round).max(0.0);
                }
                self.now = self.now.max(arrival.at);
                self.arrive(arrival.lane, arrival.job);
                continue;
            }
            let Some(Event(rounds, of)) = event else { return };
            self.events.pop();
            // What has changed since then has another event.
            let next = match of {
                Of::Request(number) => self.requests[number].next,
                Of::Prompts(lane) => self.lanes[lane].change,
            };
            if next != rounds.seconds() {
                continue;
            }
            (self.now, self.rounds) = (at, rounds.seconds().max(self.rounds));
            match of {
                Of::Request(number) => self.end(number),
                Of::Prompts(lane) => self.step_begins(lane, rounds.seconds()),
            }
        }
    }

    /// A request has its first token in the step that ends at `at`.
    fn first_token(&mut self, number: Number, at: f64) {
        let request = &mut self.requests[number];
        request.times.first_token = request.times.first_token.min(self.now);
        let (lane, steps) = (request.lane, request.job.steps() - 1);
        if steps > 0 {
            self.decode(number, at, steps);
            self.round += self.lanes[lane].rates.per_row();
        } else {
            request.next = at;
            self.end(number);
        }
    }

    /// A request has its last token.
    fn end(&mut self, number: Number) {
        let request = &mut self.requests[number];
        let state = &mut self.lanes[request.lane];
        let before = state.step();
        state.decoding -= usize::from(request.state == State::Decodes);
        request.state = State::Ended;
        request.times.done = self.now;
        self.left -= usize::from(request.awaited);
        state.seated.retain(|own| *own != number);
        self.round += state.step() - before;
        let (lane, at) = (request.lane, request.next);
        self.wake(lane, at);
    }
}
