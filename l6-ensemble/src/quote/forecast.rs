//! When the requests of a replica will have their first and last token.
//!
//! The lane is a queue with as many servers as there are seats. A request takes the seat that is free first, holds it
//! for the steps of its prompt and its output, and all seats advance together, one token a step. So the recursion of
//! Kiefer and Wolfowitz (1955, "On the theory of queues with many servers") gives the step at which each request
//! begins: it keeps the steps at which the seats are free, and each request in the order of the queue takes the
//! earliest. Steps become seconds by the measured rates: a step has a duration that depends on its width, and each
//! prompt token that is computed ahead of a request adds to its wait.

#[cfg(test)]
mod tests;

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use l5_scheduler::{Load, Rank, RequestId, SchedulerConfig, Time};

use super::in_flight::{Admitted, Entry};
use super::overtaking::Overtakers;
use super::{InFlight, OutputLengths};

/// Number of decode steps without a token after which a request is taken for preempted. One step is too few, since the
/// tokens of a step are not reported at one instant.
const PREEMPTED_STEPS: f64 = 1.5;

/// Maximum fraction of the time that goes to prompts: beyond it, requests would never get a token.
const MAX_PREFILL: f64 = 0.9;

/// Times of a request in seconds from now.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Times {
    /// Begin of its first step.
    pub begin: f64,
    pub first_token: f64,
    pub done: f64,
}

/// A request that waits, or that asks for a quote.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Job {
    pub id: RequestId,
    pub rank: Rank,
    pub deadline: Option<Time>,
    /// Prompt tokens to compute, and expected output tokens.
    pub prompt: f64,
    pub output: f64,
    /// Whether it may be in the step that runs.
    pub joined: bool,
}

/// A request that decodes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Running {
    pub id: RequestId,
    pub deadline: Option<Time>,
    /// Steps to its end, the running one included.
    pub remaining: f64,
}

/// State of a replica, as a request of some priority meets it: requests that are strictly less urgent count only if the
/// scheduler does not preempt them.
#[derive(Clone, Debug)]
pub(crate) struct Forecast {
    /// Requests that decode, by their remaining steps.
    pub running: Vec<Running>,
    /// Requests that wait, in the order of the queue.
    pub waiting: Vec<Job>,
    /// Number of less urgent requests that decode, and do not count: seats are taken from them when there is no other.
    others: usize,
    /// Whether a step runs.
    busy: bool,
    seats: usize,
    /// Prompt tokens of a step with all seats taken.
    chunk: f64,
    rates: Rates,
    /// Mean width of the recent steps.
    mean_width: Option<f64>,
    /// Fraction of the time that goes to prompts, at the rate of the recent arrivals.
    prefill: f64,
    /// Seconds since the begin of the running step.
    elapsed: f64,
    overtakers: Overtakers,
}

/// Rates of a replica in seconds.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Rates {
    base: f64,
    per_row: f64,
    per_prompt_token: f64,
}

impl Rates {
    /// The measured rates; `None` before the first step.
    pub(crate) fn of(load: &Load) -> Option<Self> {
        let decode = load.decode_time?;
        let per_prompt_token = load.prefill_seconds_per_token?;
        Some(Self { base: decode.base, per_row: decode.per_row, per_prompt_token })
    }

    fn step(&self, width: f64) -> f64 {
        self.base + self.per_row * width
    }
}

impl Forecast {
    /// Reads the state at `now`, as a request of this priority meets it. Rates that are unknown are 0.
    pub(crate) fn new(
        config: &SchedulerConfig,
        load: &Load,
        in_flight: &InFlight,
        turn_seconds: f64,
        priority: i64,
        now: Time,
    ) -> Self {
        let counts = |entry: &Entry| !in_flight.preempts() || entry.admitted.priority <= priority;
        let began = in_flight.step_began();
        let rates = Rates::of(load).unwrap_or_default();
        let late = PREEMPTED_STEPS * rates.step(1.0);
        let is_preempted = |entry: &Entry| began - entry.last > late;
        let decoding = in_flight.decoding().filter(|(_, entry)| !is_preempted(entry));
        let (decoding, others): (Vec<_>, Vec<_>) = decoding.partition(|(_, entry)| counts(entry));
        let new = in_flight.waiting().map(|(id, entry)| {
            let joined = entry.admitted.arrival <= began;
            (entry, Job { joined, ..job(id, entry.rank, &entry.admitted, in_flight) })
        });
        let preempted = in_flight.decoding().filter(|(_, entry)| is_preempted(entry));
        let preempted = preempted.map(|(id, entry)| (entry, preempted_job(id, entry, in_flight)));
        let waiting = new.chain(preempted).filter(|(entry, _)| counts(entry));
        let mut waiting: Vec<_> = waiting.map(|(_, job)| job).collect();
        waiting.sort_by_key(|job| job.rank);
        let seats = seats(config, in_flight, decoding.len() + others.len());
        let chunk = config.max_num_batched_tokens.saturating_sub(seats).max(1) as f64;
        // Every step waits for its turn. A wait that is longer than usual is taken as the beginning of a load; a
        // shorter one may be chance.
        let mean_turn = 0.5 * (turn_seconds + in_flight.mean_turn());
        let mean_turn = if turn_seconds > 0.0 { mean_turn.max(turn_seconds) } else { 0.0 };
        let rates = Rates { base: rates.base + mean_turn, ..rates };
        let Recent { overtakers, prefill } = recent(in_flight, rates, seats, chunk, priority, now);
        Self {
            running: running(decoding, in_flight.lengths()),
            waiting,
            others: others.len(),
            busy: !in_flight.is_empty(),
            seats,
            chunk,
            overtakers,
            rates,
            mean_width: in_flight.mean_width(),
            prefill,
            elapsed: (now - began).max(0.0),
        }
    }

    /// Number of seats that are taken when `more` requests are added.
    fn width(&self, more: usize) -> f64 {
        (self.running.len() + self.waiting.len() + self.others + more).min(self.seats) as f64
    }

    /// Seconds between two output tokens of a request while `width` seats are taken.
    ///
    /// The width changes during a request's life, so half of it is the mean of the recent steps. If prompts take the
    /// fraction `p` of the time, the decode steps have the rest.
    fn per_token(&self, width: f64) -> f64 {
        let width = self.mean_width.map_or(width, |mean| 0.5 * (width + mean));
        self.rates.step(width) / (1.0 - self.prefill)
    }

    /// Seconds between two output tokens of a new request.
    pub(crate) fn token_seconds(&self) -> f64 {
        self.per_token(self.width(1))
    }

    /// Seconds that `seconds` of decoding take if more urgent arrivals preempt requests, which they do while all seats
    /// are taken. Those that are preempted lose more, and others nothing.
    pub(crate) fn with_preemptions(&self, seconds: f64) -> f64 {
        let all_taken = self.width(1) as usize == self.seats;
        if all_taken { self.overtakers.wait_for_urgent(seconds) } else { seconds }
    }

    /// Seconds that a request takes alone on an idle replica.
    pub(crate) fn alone(&self, new: &Job) -> f64 {
        let steps = (new.prompt / self.chunk).ceil().max(1.0) + new.output - 1.0;
        steps * self.rates.step(1.0) + self.rates.per_prompt_token * new.prompt
    }

    /// Times of a new request: those of the requests ahead of it and of those that decode count, those behind it do
    /// not.
    ///
    /// Later requests may overtake it while it waits for a seat. Admission lets none of its own class make it late, so
    /// if it is in time but for those, it stays so. A request that is late anyway has no such protection.
    pub(crate) fn quote(&self, new: &Job, now: Time) -> Times {
        let mut line = Line::new(self, self.width(1));
        for job in self.waiting.iter().take_while(|job| job.rank < new.rank) {
            line.add(job);
        }
        let (begins, Times { begin, first_token, done }) = line.add(new);
        if begins <= 1.0 {
            return Times { begin, first_token, done };
        }
        let left = new.deadline.map_or(f64::INFINITY, |deadline| deadline - now);
        let wait = self.overtakers.wait(begin, left);
        let latest = left - (done - begin);
        let in_time = self.overtakers.wait_for_urgent(begin) <= latest;
        let later = if in_time { wait.min(latest) } else { wait } - begin;
        Times { begin: begin + later, first_token: first_token + later, done: done + later }
    }

    /// Seconds to the end of each request with a deadline, without and with the new one.
    pub(crate) fn ends<'a>(
        &'a self,
        new: &'a Job,
    ) -> impl Iterator<Item = (RequestId, Time, [f64; 2])> + 'a {
        let mut without = Line::new(self, self.width(0));
        let mut with = Line::new(self, self.width(1));
        let mut begins = None;
        let mut waiting = Vec::with_capacity(self.waiting.len());
        for job in &self.waiting {
            if begins.is_none() && new.rank < job.rank {
                begins = Some(with.add(new).0);
            }
            let behind = begins.is_some();
            waiting.push((job, without.add(job), with.add(job), behind));
        }
        let begins = begins.unwrap_or_else(|| with.add(new).0);
        // What is ahead of the new request waits while its prompt is computed, if that is before its end.
        let prompt = self.rates.per_prompt_token * new.prompt;
        let delay = move |last_step: f64| if begins < last_step { prompt } else { 0.0 };
        let tokens = [0, 1].map(|more| self.per_token(self.width(more)));
        let running = self.running.iter().filter_map(move |request| {
            let [before, after] =
                tokens.map(|seconds| self.with_preemptions(request.remaining * seconds));
            let after = after + delay(request.remaining);
            Some((request.id, request.deadline?, [before, after].map(|end| end - self.elapsed)))
        });
        let waiting = waiting.into_iter().filter_map(move |(job, before, after, behind)| {
            let delay = if behind { 0.0 } else { delay(before.0 + job.output) };
            let urgent = |times: &Times| {
                times.done + self.overtakers.wait_for_urgent(times.begin) - times.begin
            };
            Some((job.id, job.deadline?, [urgent(&before.1), urgent(&after.1) + delay]))
        });
        running.chain(waiting)
    }

    /// Seconds until the first seat is free.
    pub(crate) fn first_seat(&self) -> f64 {
        let steps = self.running.first().map_or(1.0, |request| request.remaining);
        steps * self.per_token(self.width(0))
    }
}

/// The seats of a replica while requests take them one after another.
struct Line<'a> {
    forecast: &'a Forecast,
    /// Steps from the begin of the running step at which the seats are free.
    free: BinaryHeap<Reverse<Time>>,
    /// Prompt tokens of the requests so far.
    prompts: f64,
    width: f64,
}

impl<'a> Line<'a> {
    fn new(forecast: &'a Forecast, width: f64) -> Self {
        let mut free: BinaryHeap<_> = vec![Reverse(Time::ZERO); forecast.seats].into();
        // After preemptions more requests have output tokens than there are seats. The last ones to end wait.
        for request in &forecast.running {
            let from = free.pop().map_or(0.0, |Reverse(steps)| steps.seconds());
            free.push(Reverse(Time(from + request.remaining)));
        }
        Self { forecast, free, prompts: 0.0, width }
    }

    /// Gives a request the seat that is free first. Returns the step at which it begins, and its times.
    fn add(&mut self, job: &Job) -> (f64, Times) {
        let Forecast { chunk, rates, elapsed, .. } = *self.forecast;
        let free = self.free.pop().map_or(0.0, |Reverse(steps)| steps.seconds());
        // A request that came after the begin of the running step is not in it.
        let missed = if self.forecast.busy && !job.joined { 1.0 } else { 0.0 };
        let begin = free.max(missed);
        let own = (job.prompt / chunk).ceil().max(1.0);
        self.prompts += job.prompt;
        // Prompts share the tokens of the steps.
        let prefilled = (begin + own).max((self.prompts / chunk).ceil() + missed);
        let end = prefilled + job.output - 1.0;
        self.free.push(Reverse(Time(end)));
        let step = rates.step(self.width);
        let prompt = rates.per_prompt_token * job.prompt;
        let least = own * step + prompt;
        let first = prefilled * step + rates.per_prompt_token * self.prompts - elapsed;
        let first_token = if job.joined { first.max(0.0) } else { first.max(least) };
        let done = first_token + (job.output - 1.0) * self.forecast.per_token(self.width);
        (begin, Times { begin: (first_token - least).max(0.0), first_token, done })
    }
}

/// What the recent arrivals say about the next ones.
#[derive(Default)]
struct Recent {
    /// Fractions of the lane's time that went to requests which would be ahead of one of this priority.
    overtakers: Overtakers,
    /// Fraction of the time that went to prompts.
    prefill: f64,
}

fn recent(
    in_flight: &InFlight,
    rates: Rates,
    seats: usize,
    chunk: f64,
    priority: i64,
    now: Time,
) -> Recent {
    let Some((recent, seconds)) = in_flight.arrivals().recent(now) else {
        return Recent::default();
    };
    let (mut all, mut prefill) = (0.0, 0.0);
    let mut ahead = Vec::new();
    for request in recent {
        let Job { prompt, output, .. } = job(RequestId(0), Rank::default(), request, in_flight);
        let steps = (prompt / chunk).ceil() + output - 1.0;
        let time =
            steps / seats as f64 * rates.step(seats as f64) + rates.per_prompt_token * prompt;
        all += time;
        prefill += rates.per_prompt_token * prompt;
        ahead.extend(in_flight.overtakes(request, priority).map(|deadline| (deadline, time)));
    }
    // A lane does not work more than all of the time, though more may have arrived: then the queue has grown. More
    // urgent requests do not wait in it.
    let working = seconds.max(all);
    for (deadline, time) in &mut ahead {
        *time /= if *deadline == f64::NEG_INFINITY { seconds } else { working };
    }
    Recent { overtakers: Overtakers::new(ahead), prefill: (prefill / working).min(MAX_PREFILL) }
}

/// Seats that requests can take at the same time: `max_num_seqs`, or fewer if the pool does not hold as many requests
/// of the mean size. The door knows no free blocks; it knows the size of the pool.
fn seats(config: &SchedulerConfig, in_flight: &InFlight, decoding: usize) -> usize {
    let pool = (config.capacity() * config.block_size) as f64;
    let held = in_flight.held_tokens().map_or(usize::MAX, |held| (pool / held.max(1.0)) as usize);
    // As many as decode there is room for.
    held.max(decoding).min(config.seats()).max(1)
}

/// A request as a job of the forecast.
pub(crate) fn job(id: RequestId, rank: Rank, request: &Admitted, in_flight: &InFlight) -> Job {
    let size = &request.size;
    let prompt = size.prompt_tokens.saturating_sub(size.cached_tokens).max(1) as f64;
    let output = size.expected(in_flight.lengths());
    Job { id, rank, deadline: request.deadline, prompt, output, joined: false }
}

/// A request that was preempted: its tokens are computed again, and what is to come of its output follows.
fn preempted_job(id: RequestId, entry: &Entry, in_flight: &InFlight) -> Job {
    let job = job(id, entry.rank, &entry.admitted, in_flight);
    let had = entry.output as f64;
    Job { prompt: job.prompt + had, output: (job.output - had).max(1.0), joined: true, ..job }
}

/// Requests that decode, by their remaining steps.
///
/// The lengths of outputs are random, and the first of `n` requests ends long before the mean request does. So the
/// `i`-th of them is supposed to have the `i`-th of `n` evenly spaced quantiles of what is still to come. Where the
/// lengths are certain, all quantiles are equal.
fn running(decoding: Vec<(RequestId, &Entry)>, lengths: &OutputLengths) -> Vec<Running> {
    let remaining = |entry: &Entry, quantile: f64| {
        let Admitted { size, .. } = entry.admitted;
        match size.expected_output_tokens {
            Some(expected) => (expected - entry.output as f64).max(1.0),
            None => lengths.remaining(size.max_tokens, entry.output, quantile),
        }
    };
    let mut middle: Vec<_> =
        decoding.iter().map(|(id, entry)| (Time(remaining(entry, 0.5)), *id, *entry)).collect();
    middle.sort_unstable_by_key(|(remaining, id, _)| (*remaining, *id));
    let n = middle.len() as f64;
    let spread = middle.iter().zip(1..).map(|((_, id, entry), i)| Running {
        id: *id,
        deadline: entry.admitted.deadline,
        remaining: remaining(entry, f64::from(i) / (n + 1.0)),
    });
    let mut all: Vec<_> = spread.collect();
    all.sort_unstable_by_key(|request| (Time(request.remaining), request.id));
    all
}
