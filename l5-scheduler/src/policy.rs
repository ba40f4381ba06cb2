//! Scheduling policies: the order of the queue, admission, and which request is preempted.
//!
//! The scheduler has one loop; policies differ in what they return from the methods of [`Policy`]. A policy sees
//! requests, never blocks or rows.

mod adaptive;
mod context;
mod context_serve;
mod continuum;
mod fcfs;
mod lmcache;
mod priority;
mod strict_priority;
#[cfg(test)]
mod tests;

use std::fmt;
use std::str::FromStr;

use crate::retention::{self, NoLeases, OffloadFreed, Ttl};
use crate::{LeaseId, Rank, RequestView, Retention};

pub use adaptive::Adaptive;
pub use context::{LeaseEnd, PolicyContext, PolicyEvent, SecondMemory};
pub use context_serve::ContextServe;
pub use continuum::Continuum;
pub use fcfs::Fcfs;
pub use lmcache::LmCache;
pub use priority::Priority;
pub use strict_priority::StrictPriority;

/// Decision of [`Policy::admit`] about the request at the head of the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admit {
    /// Admits the request as soon as the pool has free blocks for this many of its tokens and the
    /// [lookahead](crate::SchedulerConfig::num_lookahead_tokens), whatever its first chunk needs. 0: as soon as the
    /// blocks of its first chunk are free.
    ///
    /// The scheduler asks for blocks for all of its tokens if it was preempted and blocks are being loaded or stored.
    /// Those cannot be taken back, so with less it could preempt itself, and be admitted again, until they are free.
    IfBlocksFit(usize),
    /// Admits neither this request nor any behind it in this step.
    StopAdmitting,
    /// Skips this request in this step, and goes on with the next one in the queue.
    Skip,
}

/// Rows and tokens planned for a step so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Composed {
    /// Requests that have a row in the step.
    pub requests: usize,
    /// Tokens of their rows.
    pub tokens: usize,
}

/// What frees blocks for a running request that needs more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Victim {
    /// Preempts a running request, given by its index in the list of running requests. It may be the one that needs the
    /// blocks.
    Running(usize),
    /// Ends leases: their blocks belong to no running request. Which ones, the
    /// [`Retention`] says.
    Lease,
}

/// Decides for the scheduler: which request is next, whether it is admitted, and which request is preempted.
///
/// A policy may learn from [`Policy::observe`]. The same requests, clock and history must give the same answers, so
/// that a schedule can be repeated. What happens to the blocks of finished requests is the
/// [`Retention`]'s to decide.
///
/// # Example
///
/// A policy that runs the shortest prompt first, and preempts the request that was admitted last:
///
/// ```
/// use l5_scheduler::{
///     LeaseId, Policy, PolicyContext, Rank, Request, RequestId, RequestView, Scheduler, SchedulerConfig, Time, Victim,
/// };
///
/// struct ShortestPromptFirst;
///
/// impl Policy for ShortestPromptFirst {
///     fn name(&self) -> &'static str {
///         "shortest-prompt-first"
///     }
///
///     fn order(&self, request: &RequestView<'_>, _context: &PolicyContext<'_>) -> Rank {
///         Rank { class: request.prompt_len() as i64, tie: request.ticket(), ..Rank::default() }
///     }
///
///     fn victim(
///         &self,
///         _needy: &RequestView<'_>,
///         running: &mut dyn Iterator<Item = RequestView<'_>>,
///         _lease: Option<LeaseId>,
///         _context: &PolicyContext<'_>,
///     ) -> Option<Victim> {
///         running.count().checked_sub(1).map(Victim::Running)
///     }
/// }
///
/// let config = SchedulerConfig { max_num_seqs: 1, ..SchedulerConfig::new(64, 16) };
/// let mut scheduler = Scheduler::new(config)?.with_policy(Box::new(ShortestPromptFirst));
/// for (id, prompt_len) in [(0, 40), (1, 8)] {
///     let prompt = vec![7; prompt_len];
///     scheduler.add_request(Request { id: RequestId(id), prompt, max_tokens: 4, ..Request::default() })?;
/// }
/// let step = scheduler.plan(Time::ZERO);
/// assert_eq!(step.rows.len(), 1, "max_num_seqs is 1");
/// assert_eq!(step.rows[0].id, RequestId(1), "the shorter prompt runs first");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait Policy: Send {
    /// Name of the policy, as on the command line.
    fn name(&self) -> &'static str;

    /// Rank of a request in the waiting queue. The scheduler asks each time the request joins the queue, and when
    /// [`Scheduler::rerank`](crate::Scheduler::rerank) is called for its job. Ranks must be unique.
    fn order(&self, request: &RequestView<'_>, context: &PolicyContext<'_>) -> Rank;

    /// Whether [`Policy::order`] depends on the leases of the request's job. If so, the scheduler asks for the ranks of
    /// a job's waiting requests again when a lease of the job begins or ends.
    fn orders_by_leases(&self) -> bool {
        false
    }

    /// Whether the request at the head of the queue is admitted, and how many of its tokens must have free blocks.
    fn admit(&self, request: &RequestView<'_>, context: &PolicyContext<'_>) -> Admit {
        Admit::IfBlocksFit(if context.config.scheduler_reserve_full_isl {
            request.num_tokens()
        } else {
            0
        })
    }

    /// Whether a request may have a row in a step that already holds `so_far`: a policy can keep adapters apart, or
    /// prefill and decode.
    fn compose(&self, request: &RequestView<'_>, so_far: &Composed) -> bool {
        let _ = (request, so_far);
        true
    }

    /// Chooses what frees blocks for the running request `needy`. `running` is in the order of admission and contains
    /// `needy`. `lease` is the first of the leases that [`Victim::Lease`] would end; without one, no lease frees a
    /// block. `None`: nothing; `needy` has no row in this step.
    fn victim(
        &self,
        needy: &RequestView<'_>,
        running: &mut dyn Iterator<Item = RequestView<'_>>,
        lease: Option<LeaseId>,
        context: &PolicyContext<'_>,
    ) -> Option<Victim>;

    /// Whether the waiting request `arrival`, which does not fit, may preempt this running request.
    fn may_preempt(&self, running: &RequestView<'_>, arrival: &RequestView<'_>) -> bool {
        let _ = (running, arrival);
        false
    }

    /// Whether the scheduler plans further running requests, and admits waiting ones, in a step in which a request was
    /// preempted.
    fn continues_after_preemption(&self) -> bool {
        false
    }

    /// Share of the computed tokens that requests without a job get as long as one of them waits, and steps of jobs
    /// likewise; at most 0.5. When the longest-waiting request of a class has earned its prompt, the scheduler asks for
    /// its rank again, with a context in which it is [promoted](PolicyContext::promoted). 0: no request is. The scheduler
    /// asks once, when the policy is given to it.
    fn service_floor(&self) -> f64 {
        0.0
    }

    /// Learns from something that happened. See [`PolicyEvent`] for what an abandoned step does not undo.
    fn observe(&mut self, event: &PolicyEvent<'_>, context: &PolicyContext<'_>) {
        let _ = (event, context);
    }
}

/// Name of a built-in policy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PolicyKind {
    /// First come, first served: [`Fcfs`].
    #[default]
    Fcfs,
    /// By priority; running requests are never preempted for waiting ones: [`Priority`].
    Priority,
    /// By priority; waiting requests preempt running ones: [`StrictPriority`].
    StrictPriority,
    /// For agents: blocks of a step are held for a time, and steps of such jobs are first: [`Continuum`].
    Continuum,
    /// For agents: blocks of a step are held if its tool is fast; the queue is that of `continuum`: [`ContextServe`].
    ContextServe,
    /// First come, first served; blocks of finished requests are stored in another memory: [`LmCache`].
    LmCache,
    /// For agents: blocks of a step are held until they are needed more elsewhere: [`Adaptive`].
    Adaptive,
}

impl PolicyKind {
    /// All built-in policies.
    pub const ALL: [PolicyKind; 7] = [
        Self::Fcfs,
        Self::Priority,
        Self::StrictPriority,
        Self::Continuum,
        Self::ContextServe,
        Self::LmCache,
        Self::Adaptive,
    ];

    /// Creates the policy.
    pub fn policy(self) -> Box<dyn Policy> {
        match self {
            Self::Fcfs => Box::new(Fcfs),
            Self::Priority => Box::new(Priority),
            Self::StrictPriority => Box::new(StrictPriority),
            Self::Continuum => Box::new(Continuum),
            Self::ContextServe => Box::new(ContextServe),
            Self::LmCache => Box::new(LmCache),
            Self::Adaptive => Box::new(Adaptive),
        }
    }

    /// Creates the retention that belongs to the policy; `ttl` is that of `continuum` and `context-serve`.
    pub fn retention(self, ttl: Ttl) -> Box<dyn Retention> {
        match self {
            Self::Fcfs | Self::Priority | Self::StrictPriority => Box::new(NoLeases),
            Self::Continuum => Box::new(retention::Continuum::new(ttl)),
            Self::ContextServe => Box::new(retention::ContextServe::new(ttl)),
            Self::LmCache => Box::new(retention::LmCache),
            Self::Adaptive => Box::new(retention::Adaptive::default()),
        }
    }

    /// Creates the retention that belongs to the policy where there is a memory behind the pool: blocks that would be
    /// free, and those of leases that end, are copied there. `adaptive` says itself which.
    pub fn retention_with_memory(self, ttl: Ttl) -> Box<dyn Retention> {
        let own = self.retention(ttl);
        if self == Self::Adaptive { own } else { Box::new(OffloadFreed(own)) }
    }
}

impl fmt::Display for PolicyKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.policy().name())
    }
}

impl FromStr for PolicyKind {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        let name = if s == "context_serve" { "context-serve" } else { s };
        let found = Self::ALL.into_iter().find(|kind| kind.policy().name() == name);
        found.ok_or_else(|| {
            format!(
                "unknown scheduling policy `{s}`: use fcfs, priority, strict-priority, continuum, context-serve, lmcache or \
                 adaptive"
            )
        })
    }
}
