//! A quote from the work of all lanes of a machine.
//!
//! Two runs of the [`Machine`] answer two questions:
//!
//! * *Is a promise broken?* The requests in flight and the new one are run, with the arrivals that no door of this lane
//!   can hold back for the sake of the promise: those of the other lanes, and those of this lane that are strictly more
//!   urgent. What breaks in this run, and does not without the new request, is harmed. Without the arrivals of the other
//!   lanes the run would see them drain: their doors would then admit until a promise here is in danger, refuse
//!   everything for seconds, and so on, and the machine's load would swing between nearly empty and full.
//! * *When will the request be served?* Arrivals are added, as many as came recently. Other lanes go on taking their
//!   part of the machine, and the own lane stays as full as it is. Arrivals of its own class that could overtake the
//!   request wait behind it, for the door bounds how far they make it later: by a quarter of its wait ([`PROMISE`]).
//!   How much of that they use, the lane measures ([`Overtaking`](super::overtaking::Overtaking)).

#[cfg(test)]
mod tests;

use std::borrow::Cow;

use l5_scheduler::{RequestId, Time};

use super::in_flight::Admitted;
use super::machine::{Arrival, Machine, Times};
use super::work::{GOLDEN, Job, LaneWork, Rates};
use super::{GRAIN_SECONDS, Harm, InFlight, Quote, duration, is_harmed};

/// Maximum number of requests that are supposed to arrive during a forecast. It bounds the time at the door.
const MAX_ARRIVALS: usize = 512;

/// Fraction of its wait by which others may make a waiting request later than it was told.
const PROMISE: f64 = 0.25;

/// Id of a request that has none.
const NEW: RequestId = RequestId(u64::MAX >> 1);

/// The lanes of a machine, of which the first is the one that is asked.
pub(crate) struct Forecast<'a> {
    lanes: Vec<Cow<'a, LaneWork>>,
    /// The machine before anything happens.
    machine: Machine,
    measured: bool,
    /// Factor of the times between arrivals.
    stretch: f64,
    now: Time,
}

impl<'a> Forecast<'a> {
    pub(crate) fn new(own: &'a LaneWork, neighbours: &'a [LaneWork], now: Time) -> Self {
        // A lane without requests and arrivals changes nothing.
        let matters = |work: &&LaneWork| work.is_busy() || !work.arrivals.is_empty();
        let lanes = std::iter::once(own).chain(neighbours.iter().filter(matters));
        let mut lanes: Vec<_> = lanes.map(Cow::Borrowed).collect();
        // A lane whose steps were not measured is supposed to be like the others.
        let measured = neighbours.iter().chain([own]).filter(|work| work.measured);
        let mean = Rates::mean(measured.map(|work| work.rates));
        if let Some(mean) = mean {
            for work in lanes.iter_mut().filter(|work| !work.measured) {
                work.to_mut().rates = mean;
            }
        }
        // No machine works more than all of the time, though more may have arrived: then queues have grown, and the
        // door refuses what is too much.
        let stretch = lanes.iter().map(|work| work.arriving_work()).sum::<f64>().max(1.0);
        let stretch = stretch / going_on(&lanes);
        let machine = Machine::new(&lanes, now);
        Self { lanes, machine, measured: mean.is_some(), stretch, now }
    }

    /// Quotes a request. `margin` is the fraction of the time to its end by which a request in flight must be before
    /// its deadline.
    pub(crate) fn quote(&self, request: &Admitted, in_flight: &InFlight, margin: f64) -> Quote {
        let job = in_flight.job(NEW, request);
        let certain = |lane: usize, other: &mut Job| lane != 0 || other.priority < request.priority;
        let (_, machine) = self.times(&job, Some(request.priority), certain);
        let harms = self.harms(&machine, &job, margin, certain);
        let first_seat = machine.times(0).done;
        let left = request.deadline.map_or(f64::INFINITY, |deadline| deadline - self.now);
        // Those of its class that would overtake it are supposed to wait behind it.
        let behind = |lane: usize, other: &mut Job| {
            if lane == 0 && other.priority >= request.priority {
                other.rank = other.rank.max(job.rank);
            }
            true
        };
        let (sure, _) = self.times(&job, None, behind);
        // Others of its class may overtake it as long as the promises hold, and while it has no seat.
        let latest = if sure.done <= left { left - sure.done } else { f64::INFINITY };
        let later = (PROMISE * sure.first_token).max(GRAIN_SECONDS).min(latest);
        let range = [sure.first_token, sure.first_token + later];
        let own = &self.lanes[0];
        let has_seat = own.running.len() + own.waiting.len() < own.seats;
        let later =
            if has_seat { 0.0 } else { in_flight.overtaking().fraction(request.priority) * later };
        let times = Times {
            begin: sure.begin + later,
            first_token: sure.first_token + later,
            done: sure.done + later,
        };
        let others = (job.steps() - 1) as f64;
        let per_token = |times: &Times| match others > 0.0 {
            true => (times.done - times.first_token) / others,
            false => self.lanes[0].rates.step(1.0),
        };
        let longer = (request.size.late(in_flight.lengths()) - 1.0 - others).max(0.0);
        let late = sure.done + longer * per_token(&sure);
        Quote {
            queue: duration(times.begin),
            first_token: duration(times.first_token),
            first_token_range: range.map(duration),
            done: duration(times.done),
            done_late: duration(late.max(sure.done)),
            per_token: duration(per_token(&times)),
            alone: duration(self.alone(&job)),
            first_seat: duration(if first_seat.is_finite() { first_seat } else { 0.0 }),
            beside: self.lanes.iter().map(|work| work.len()).sum(),
            measured: self.measured,
            harms,
        }
    }

    /// Runs the machine with a request and the arrivals that count. `until`: to the end of all requests with a deadline
    /// that are as urgent as this priority, and not only of the new one.
    fn times(
        &self,
        job: &Job,
        until: Option<i64>,
        counts: impl Fn(usize, &mut Job) -> bool,
    ) -> (Times, Machine) {
        let mut machine = self.machine.clone();
        if let Some(priority) = until {
            self.wait_for_deadlines(&mut machine, priority);
            // The first seat that becomes free.
            if !self.lanes[0].running.is_empty() {
                machine.wait_for(0);
            }
        }
        let number = machine.arrive(0, *job);
        machine.wait_for(number);
        machine.run(self.arrivals(counts));
        (machine.times(number), machine)
    }

    fn wait_for_deadlines(&self, machine: &mut Machine, priority: i64) {
        let mut number = 0;
        while let Some(job) = machine.job(number) {
            let promised = job.deadline.or(job.promised).is_some();
            if promised && job.priority <= priority {
                machine.wait_for(number);
            }
            number += 1;
        }
    }

    /// The first request in flight, at least as urgent as the new one, of which a promise is broken with the new one
    /// and is not without it: its deadline, or the time of its first token, if it waits and the new one overtakes it.
    fn harms(
        &self,
        with: &Machine,
        new: &Job,
        margin: f64,
        counts: impl Fn(usize, &mut Job) -> bool,
    ) -> Option<Harm> {
        let ends = |machine: &Machine, number: usize, first: bool| {
            let times = machine.times(number);
            if first { times.first_token } else { times.done }
        };
        let mut broken = Vec::new();
        let mut number = 0;
        for (lane, work) in self.lanes.iter().enumerate() {
            let jobs = work.running.iter().chain(&work.waiting);
            for job in jobs {
                let overtaken = lane == 0 && new.rank < job.rank;
                let deadline = job.deadline.map(|at| (at - self.now, margin, false));
                let promised =
                    job.promised.filter(|_| overtaken).map(|at| (at - self.now, 0.0, true));
                let promises = deadline.into_iter().chain(promised);
                for (left, margin, first) in promises.filter(|_| job.priority <= new.priority) {
                    if ends(with, number, first) * (1.0 + margin) > left {
                        broken.push((number, job.id, left, margin, first));
                    }
                }
                number += 1;
            }
        }
        if broken.is_empty() {
            return None;
        }
        let mut without = self.machine.clone();
        broken.iter().for_each(|(number, ..)| without.wait_for(*number));
        without.run(self.arrivals(counts));
        let harmed = broken.into_iter().find(|(number, _, left, margin, first)| {
            let [before, after] = [&without, with].map(|machine| ends(machine, *number, *first));
            // A late deadline is lost, and a late first token may become later still.
            if *first {
                after > before * (1.0 + 1e-9)
            } else {
                is_harmed(*left, [before, after], *margin)
            }
        });
        harmed.map(|(number, request, left, _, first)| {
            let done = duration(ends(with, number, first));
            Harm { request, done, left: duration(left) }
        })
    }

    /// The arrivals of all lanes that count, in order.
    fn arrivals(&self, counts: impl Fn(usize, &mut Job) -> bool) -> impl Iterator<Item = Arrival> {
        // The next arrival of each lane: its time, and its number.
        let mut next: Vec<(Time, usize)> = Vec::with_capacity(self.lanes.len());
        next.extend(self.lanes.iter().zip(1_u32..).map(|(work, lane)| {
            // The lanes do not get their requests at the same moments.
            let phase = (f64::from(lane) * GOLDEN).fract();
            let none = work.arrivals.is_empty() || self.stretch.is_infinite();
            (Time(if none { f64::INFINITY } else { phase * self.stretch * work.gap() }), 0)
        }));
        let all = std::iter::from_fn(move || {
            let times = next.iter_mut().zip(0..).filter(|(own, _)| own.0.seconds().is_finite());
            let (own, lane) = times.min_by_key(|(own, _)| own.0)?;
            let (work, (at, number)) = (&self.lanes[lane], *own);
            let mut job = *work.arrivals.get(number % work.arrivals.len().max(1))?;
            *own = (at + self.stretch * work.gap(), number + 1);
            let later = self.now + at.seconds() - job.rank.arrival;
            job.rank.arrival = job.rank.arrival + later;
            if work.preempts {
                job.rank.deadline = job.rank.deadline + later;
            }
            job.deadline = job.deadline.map(|deadline| deadline + later);
            Some(Arrival { at: at.seconds(), lane, job })
        });
        all.take(MAX_ARRIVALS)
            .filter_map(move |mut own| counts(own.lane, &mut own.job).then_some(own))
    }

    /// Seconds that a request takes alone on an idle machine.
    fn alone(&self, job: &Job) -> f64 {
        let LaneWork { rates, step_tokens, .. } = &*self.lanes[0];
        let prompt = (job.prompt / step_tokens).ceil().max(1.0) * rates.step(0.0);
        let output = (job.steps() - 1) as f64 * rates.step(1.0);
        prompt + rates.per_prompt_token * job.prompt + output
    }
}

/// Part of the arrivals that is expected to go on while a new request is in flight: what they found in flight, over the
/// mean number in flight. 1 if the machine was idle.
fn going_on(lanes: &[Cow<'_, LaneWork>]) -> f64 {
    let recent = lanes.iter().filter(|work| !work.arrivals.is_empty());
    let (mut found, mut count, mut in_flight) = (0.0, 0, 0.0);
    for work in recent {
        found += work.found;
        count += work.arrivals.len();
        in_flight += work.seconds / work.period;
    }
    if in_flight > 0.0 { (found / f64::from(count as u32) / in_flight).min(1.0) } else { 1.0 }
}
