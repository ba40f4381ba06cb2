//! Admission at the door: a request is accepted if what is promised to it, and to the requests in flight, can be kept.
//!
//! The door decides before a request is submitted, and from estimates:
//!
//! * the request fits the context and the pool, which is certain ([`Scheduler::completable`]);
//! * its deadline can be met;
//! * no request in flight on the machine that is at least as urgent misses its deadline because of it, and none that it
//!   overtakes gets its first token later than was promised ([`Quote::first_token_range`]).
//!
//! What the door does not decide is the scheduler's: the order of the queue, whether blocks are free, and preemption of
//! less urgent requests. A request that is strictly more urgent may make less urgent ones late.

mod retry_after;
mod spill;
#[cfg(test)]
mod tests;

use std::fmt;

use l5_scheduler::{Load, Rejection, Scheduler, SchedulerConfig, Time};

use crate::quote::{Admitted, Forecast, InFlight, LaneWork, Quote, RequestSize};

pub use retry_after::MAX_RETRY_AFTER;
use retry_after::retry_after;
pub use spill::{SecondChoice, Spill, admit_or_spill};

/// A request at the door.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct AdmissionRequest {
    /// Its tokens.
    pub size: RequestSize,
    /// Priority: a lower number is more urgent.
    pub priority: i64,
    /// Time by which it should be finished, by the clock of `now`.
    pub deadline: Option<Time>,
    /// Present time.
    pub now: Time,
    /// Random number from 0 to 1 that spreads the retries of refused requests.
    pub jitter: f64,
}

impl AdmissionRequest {
    /// The request as it is noted when it is admitted with this quote.
    pub fn admitted(&self, quote: &Quote) -> Admitted {
        let Self { size, priority, deadline, now: arrival, .. } = *self;
        let Quote { first_token_range, beside, .. } = *quote;
        let left = deadline.map_or(f64::INFINITY, |deadline| deadline - arrival);
        let in_time = quote.done_late.as_secs_f64() <= left;
        Admitted { arrival, priority, deadline, size, first_token_range, beside, in_time }
    }
}

/// Margins of the estimates, as fractions of the estimated time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Margins {
    /// A deadline must be later than the estimated end by this fraction.
    pub deadline: f64,
    /// A deadline in flight must be later than the estimated end by this fraction after a request was admitted.
    pub harm: f64,
}

impl Default for Margins {
    fn default() -> Self {
        Self { deadline: 0.10, harm: 0.05 }
    }
}

/// A replica as the door sees it.
#[derive(Clone, Copy, Debug)]
pub struct LaneView<'a> {
    /// Load of the replica.
    pub load: Load,
    /// Limits of its scheduler.
    pub config: &'a SchedulerConfig,
    /// Requests that it has.
    pub in_flight: &'a InFlight,
    /// Maximum number of requests that wait beyond those for which seats are free.
    pub max_num_waiting: usize,
    /// Largest priority number that is accepted. `None`: all are.
    pub priority_floor: Option<i64>,
    /// What the other replicas of the machine have to do: their steps take turns with those of this one
    /// ([`InFlight::work`]). Empty if the replica has a machine of its own. The rates of the loads must not include
    /// waits for the turn.
    pub neighbours: &'a [LaneWork],
    /// Margins of the estimates.
    pub margins: Margins,
}

impl LaneView<'_> {
    /// Whether the machine has requests.
    fn is_busy(&self) -> bool {
        !self.in_flight.is_empty() || self.neighbours.iter().any(LaneWork::is_busy)
    }

    /// Whether the queue has no room for another request.
    pub fn is_full(&self) -> bool {
        // exercise l6.door
        let Load { running, waiting, .. } = self.load;
        let free = self.config.seats().saturating_sub(running);
        waiting >= self.max_num_waiting.saturating_add(free)
        // end of exercise
    }
}

/// Why a request was refused. The condition can change: the client may try again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RefusalCode {
    /// The request would end after its deadline.
    DeadlineUnreachable,
    /// A request in flight would miss its deadline, or would wait longer than it was promised.
    WouldHarm,
    /// The lane accepts only more urgent requests at this moment.
    PriorityFloor,
    /// The lane's queue is full.
    QueueFull,
}

impl RefusalCode {
    /// All codes.
    pub const ALL: [Self; 4] =
        [Self::DeadlineUnreachable, Self::WouldHarm, Self::PriorityFloor, Self::QueueFull];

    /// Name of the code in responses, logs and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::DeadlineUnreachable => "deadline_unreachable",
            Self::WouldHarm => "would_harm",
            Self::PriorityFloor => "priority_floor",
            Self::QueueFull => "queue_full",
        }
    }

    /// Whether a lane with less load would have admitted the request. A priority floor is set by an operator or by
    /// escalation, and holds for the request wherever it goes.
    pub fn is_load(self) -> bool {
        self != Self::PriorityFloor
    }
}

impl fmt::Display for RefusalCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A refusal, with the quote that led to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Reason.
    pub code: RefusalCode,
    /// What the request could have expected.
    pub quote: Quote,
    /// Whole seconds after which the client should try again, from 1 to [`MAX_RETRY_AFTER`].
    pub retry_after: u32,
    /// Whether not even an idle machine could keep the deadline. Then no retry helps.
    pub hopeless: bool,
}

impl Refusal {
    /// Whether a lane with less load would have admitted the request: what a refusal says about the load of the lane.
    /// A priority floor and a deadline that nothing could keep say nothing.
    pub fn is_load(&self) -> bool {
        self.code.is_load() && !self.hopeless
    }
}

/// Decision of the door.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Admits the request.
    Admit {
        /// What it can expect.
        quote: Quote,
    },
    /// Refuses the request (HTTP 429).
    Refuse(Refusal),
}

impl Decision {
    /// The quote that the decision is based on.
    pub fn quote(&self) -> &Quote {
        match self {
            Self::Admit { quote } | Self::Refuse(Refusal { quote, .. }) => quote,
        }
    }
}

/// A request that the lane can never complete, whatever its load (HTTP 400, code `context`).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(transparent)]
pub struct ContextError(#[from] pub Rejection);

/// Decides whether a replica admits a request.
///
/// The checks are in the order of their certainty: the priority floor, the length of the queue, the deadline of the
/// request, the promises to others. A request without a deadline is never refused as `deadline_unreachable`.
///
/// Before a few steps were measured, ends are unknown, and a promise would be a guess. So a request with a deadline is
/// then admitted only to a machine without other requests, whose steps are soon measured; others are refused as
/// `queue_full`.
///
/// The cost is that of the requests in flight on the machine, and of some hundred expected arrivals
/// (`benches/admit.rs` measures it).
///
/// # Errors
/// [`ContextError`] if the request does not fit the context or the pool.
///
/// # Example
///
/// ```
/// use std::time::Duration;
///
/// use l5_scheduler::engine::LoadMeter;
/// use l5_scheduler::{PolicyKind, SchedulerConfig, StepLoad, Time};
/// use l6_ensemble::admission::{AdmissionRequest, Decision, LaneView, Margins, RefusalCode, decide};
/// use l6_ensemble::quote::{InFlight, RequestSize};
///
/// // A step takes 10 ms for each row.
/// let (mut meter, step) = (LoadMeter::default(), StepLoad { decode_tokens: 1, ..StepLoad::default() });
/// (0..8).for_each(|_| meter.step(&step, Duration::from_millis(10)));
/// let config = SchedulerConfig { max_num_seqs: 4, ..SchedulerConfig::new(1024, 16) };
/// let in_flight = InFlight::new(PolicyKind::StrictPriority);
/// let (load, margins) = (meter.load(), Margins::default());
/// let lane = LaneView {
///     load, config: &config, in_flight: &in_flight, max_num_waiting: 64, priority_floor: None, neighbours: &[],
///     margins,
/// };
///
/// let size = RequestSize { prompt_tokens: 1, max_tokens: 100, ..RequestSize::default() };
/// let request = |within| AdmissionRequest { size, deadline: Some(Time(within)), ..Default::default() };
/// assert!(matches!(decide(&request(2.0), &lane)?, Decision::Admit { .. }), "a second is enough");
/// let Decision::Refuse(refusal) = decide(&request(0.5), &lane)? else { panic!() };
/// assert_eq!(refusal.code, RefusalCode::DeadlineUnreachable);
/// assert_eq!(refusal.quote.done.as_millis(), 1000, "the prompt, and 99 tokens");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn decide(request: &AdmissionRequest, lane: &LaneView<'_>) -> Result<Decision, ContextError> {
    let RequestSize { prompt_tokens, max_tokens, .. } = request.size;
    Scheduler::completable(lane.config, prompt_tokens, max_tokens)?;
    // The context ends longer outputs.
    let most = lane.config.max_model_len.saturating_sub(prompt_tokens);
    let size = RequestSize { max_tokens: max_tokens.min(most), ..request.size };
    let admitted = Admitted { size, ..request.admitted(&Quote::default()) };
    let work = lane.in_flight.work(lane.config, &lane.load, request.now);
    let forecast = Forecast::new(&work, lane.neighbours, request.now);
    let quote = forecast.quote(&admitted, lane.in_flight, lane.margins.harm);
    let left = request.deadline.map(|deadline| deadline - request.now);
    // The seconds in which it must end by the estimate, so that it is in time with the margin.
    let due = left.map(|left| left / (1.0 + lane.margins.deadline));
    let hopeless = due.is_some_and(|due| quote.measured && quote.alone.as_secs_f64() > due);
    // exercise l6.door
    let late = quote.done_late.as_secs_f64() * (1.0 + lane.margins.deadline);
    let code = if lane.priority_floor.is_some_and(|floor| request.priority > floor) {
        RefusalCode::PriorityFloor
    } else if lane.is_full() || left.is_some() && !quote.measured && lane.is_busy() {
        RefusalCode::QueueFull
    } else if left.is_some_and(|left| late > left) {
        RefusalCode::DeadlineUnreachable
    } else if quote.harms.is_some() {
        RefusalCode::WouldHarm
    } else {
        return Ok(Decision::Admit { quote });
    };
    let retry_after = retry_after(code, &quote, due, request.jitter);
    Ok(Decision::Refuse(Refusal { code, quote, retry_after, hopeless }))
    // end of exercise
}
