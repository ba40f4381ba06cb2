//! The lanes that share a machine, from now on.
//!
//! A machine runs one step at a time. A lane plans its next step when the last one has ended, and queues it behind the
//! planned steps of the other lanes. So the machine works in *rounds*: in each, every lane that has requests runs one
//! step. While the same requests run, all rounds are alike: a request that decodes gets one token, and the round takes
//! as long as the steps of all lanes together. Rounds are therefore counted in fractions, as a clock, and the machine
//! goes from event to event: a request arrives, has its first token, ends. Between two events the clock runs at a
//! constant rate, `seconds = rounds * (sum of the steps)`. This is processor sharing between the lanes, and within a
//! lane the recursion of Kiefer and Wolfowitz (1955, "On the theory of queues with many servers"): a request takes the
//! seat that is free first, in the order of the policy.
//!
//! The cost is that of the requests, a few events for each, and not that of their tokens.

#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

use l5_scheduler::{Rank, Time};

use super::work::{Job, LaneWork, Rates};

/// Maximum number of events that are run. It bounds the time at the door; requests that have not ended by then count
/// as never ending.
const MAX_EVENTS: usize = 20_000;

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
    /// First tokens and ends to come.
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
    /// Seconds that the prompt adds to a round.
    prompt_seconds: f64,
    awaited: bool,
}

/// The rounds of an event, and its request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Event(Time, Number);

#[derive(Clone)]
struct Lane {
    rates: Rates,
    seats: usize,
    step_tokens: f64,
    preempts: bool,
    /// Whether there are requests of more than one priority.
    is_mixed: bool,
    /// Requests with a seat, and how many of them decode.
    seated: Vec<Number>,
    decoding: usize,
    /// Requests without a seat, in the order of the policy.
    waiting: BinaryHeap<Reverse<(Rank, Number)>>,
    /// Fraction of a round after which its steps end.
    phase: f64,
    /// Rounds at which the prompts are computed that have seats.
    prompts: f64,
}

impl Lane {
    /// Seconds of a step, but for prompts.
    fn step(&self) -> f64 {
        if self.seated.is_empty() { 0.0 } else { self.rates.step(self.decoding as f64) }
    }

    /// The first end of a step after these rounds.
    fn next_end(&self, rounds: f64) -> f64 {
        self.phase + (rounds - self.phase).floor() + 1.0
    }
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
            machine.lanes.push(Lane {
                rates: work.rates,
                seats: work.seats,
                step_tokens: work.step_tokens,
                preempts: work.preempts,
                is_mixed: false,
                seated: Vec::with_capacity(work.seats),
                decoding: 0,
                waiting: BinaryHeap::with_capacity(work.waiting.len()),
                phase: 0.0,
                prompts: 0.0,
            });
            for job in work.running.iter().chain(&work.waiting) {
                machine.add(lane, *job);
            }
        }
        machine.set_phases(lanes, now);
        let mut number = 0;
        for (lane, work) in lanes.iter().enumerate() {
            let last_end = machine.lanes[lane].phase - 1.0;
            for at in 0..work.running.len() + work.waiting.len() {
                let state = &mut machine.lanes[lane];
                if at < work.running.len() && state.seated.len() < state.seats {
                    state.seated.push(number);
                    machine.round += if at == 0 { state.rates.step(0.0) } else { 0.0 };
                    let request = &mut machine.requests[number];
                    request.times.begin = 0.0;
                    let steps = request.job.steps();
                    machine.decode(number, last_end, steps);
                } else {
                    let rank = machine.requests[number].job.rank;
                    state.waiting.push(Reverse((rank, number)));
                }
                number += 1;
            }
            // Those that came before the planned step are in it.
            machine.seat(lane, last_end, true);
            machine.seat(lane, last_end + 1.0, false);
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
        let other = state.seated.first().copied().or(state.waiting.peek().map(|own| own.0.1));
        state.is_mixed |=
            other.is_some_and(|other| self.requests[other].job.priority != job.priority);
        self.requests.push(Request {
            job,
            lane,
            state: State::Waits,
            times: Times::NEVER,
            next: f64::INFINITY,
            prompt_seconds: 0.0,
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
        self.seat(lane, at, false);
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

    /// Gives free seats to waiting requests, whose prompts are computed from `at` on. `joined`: only to those that may
    /// be in the planned step.
    fn seat(&mut self, lane: usize, at: f64, joined: bool) {
        let before = self.lanes[lane].step();
        while let Some(&Reverse((_, number))) = self.lanes[lane].waiting.peek() {
            let job = self.requests[number].job;
            if joined && !job.joined || !self.has_seat(lane, job.priority, at) {
                break;
            }
            let begin = self.seconds(at);
            let state = &mut self.lanes[lane];
            state.waiting.pop();
            state.seated.push(number);
            // Prompts share the tokens of the steps.
            let tokens = (state.step_tokens - state.decoding as f64).max(1.0);
            let from = state.prompts.max(at);
            state.prompts = from + job.prompt / tokens;
            let rounds = (state.prompts - at - 1e-9).ceil().max(1.0);
            let span = (at + rounds - self.rounds).max(1e-3);
            let seconds = state.rates.per_prompt_token * job.prompt / span;
            let request = &mut self.requests[number];
            request.times.begin = request.times.begin.min(begin);
            (request.state, request.prompt_seconds) = (State::Prefills, seconds);
            request.next = at + rounds;
            self.round += seconds;
            self.events.push(Reverse(Event(Time(at + rounds), number)));
        }
        self.round += self.lanes[lane].step() - before;
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
        self.round += lane.rates.per_row();
        (request.state, request.next) = (State::Decodes, at + steps as f64);
        self.events.push(Reverse(Event(Time(request.next), number)));
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
            let Some(Event(rounds, number)) = event else { return };
            self.events.pop();
            if self.requests[number].next != rounds.seconds() {
                continue;
            }
            (self.now, self.rounds) = (at, rounds.seconds().max(self.rounds));
            self.happens(number);
        }
    }

    /// The next event of a request: its first token, or its end.
    fn happens(&mut self, number: Number) {
        let request = &mut self.requests[number];
        let (at, lane) = (request.next, request.lane);
        let steps = match request.state {
            State::Prefills => {
                self.round -= request.prompt_seconds;
                request.times.first_token = request.times.first_token.min(self.now);
                request.job.steps() - 1
            }
            _ => 0,
        };
        if steps > 0 {
            self.decode(number, at, steps);
            return;
        }
        let state = &mut self.lanes[lane];
        let before = state.step();
        state.decoding -= usize::from(request.state == State::Decodes);
        request.state = State::Ended;
        request.times.done = self.now;
        self.left -= usize::from(request.awaited);
        state.seated.retain(|own| *own != number);
        self.round += state.step() - before;
        self.seat(lane, at, false);
    }
}
