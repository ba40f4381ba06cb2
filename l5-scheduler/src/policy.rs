//! The questions that decide who goes first and who gives way.
//!
//! The scheduler's loop is one; policies differ in their answers. A policy sees requests, never blocks or rows.

mod fcfs;
mod priority;
mod strict_priority;
#[cfg(test)]
mod tests;

use std::fmt;
use std::str::FromStr;

use crate::lease::Leases;
use crate::{Lease, LeaseId, Rank, RequestView, SchedulerConfig, Time};

pub use fcfs::Fcfs;
pub use priority::Priority;
pub use strict_priority::StrictPriority;

/// What a waiting request needs before it may begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admit {
    /// It may begin as soon as blocks for so many of its tokens are free, whatever its first chunk takes. 0: as soon as
    /// its first chunk fits.
    WhenFits(usize),
    /// Not in this step, and nobody behind it either.
    NobodyNow,
    /// Not in this step; ask the next one.
    NotNow,
}

/// What a step holds so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Composed {
    /// Requests that take part.
    pub requests: usize,
    /// Tokens of theirs.
    pub tokens: usize,
}

/// Whose blocks go first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Victim {
    /// A running request, by its number in the list of those that run. It may be the one that needs the blocks.
    Running(usize),
    /// Blocks that are kept for nobody who runs.
    Lease(LeaseId),
}

/// What becomes of the blocks of a request that has finished.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Retain {
    /// They are free, and found by what they hold until somebody else needs them.
    Free,
    /// They are kept until then, unless the pool runs dry before.
    PinUntil(Time),
    /// They are written to another memory, and free when that is done.
    Offload,
}

/// The small questions. Answers must follow from what they are asked about alone, so that the same requests give the
/// same schedule.
pub trait Policy: Send {
    /// As on the command line.
    fn name(&self) -> &'static str;

    /// A request's place in the queue. Asked once each time it joins it.
    fn order(&self, request: &RequestView<'_>) -> Rank;

    /// What the next in the queue needs before it may begin.
    fn admit(&self, request: &RequestView<'_>, config: &SchedulerConfig) -> Admit {
        Admit::WhenFits(if config.scheduler_reserve_full_isl { request.num_tokens() } else { 0 })
    }

    /// Whether a request may take part in a step that holds this already. (By adapter, or decode only.)
    fn compose(&self, request: &RequestView<'_>, so_far: &Composed) -> bool {
        let _ = (request, so_far);
        true
    }

    /// Whose blocks go when `needy` cannot have its next ones. `running` is in the order of admission and holds `needy`.
    /// `None`: nobody's, `needy` sits this step out.
    fn victim(
        &self,
        needy: &RequestView<'_>,
        running: &mut dyn Iterator<Item = RequestView<'_>>,
        leases: &Leases,
    ) -> Option<Victim>;

    /// Whether a running request gives way to one that waits and does not fit.
    fn yields(&self, running: &RequestView<'_>, arrival: &RequestView<'_>) -> bool {
        let _ = (running, arrival);
        false
    }

    /// Whether a step in which somebody was preempted goes on as any other: plans those behind, and admits.
    fn goes_on_after_preemption(&self) -> bool {
        false
    }

    /// What becomes of the blocks of a request that has finished.
    fn retain(&self, finished: &RequestView<'_>, now: Time) -> Retain {
        let _ = (finished, now);
        Retain::Free
    }
}

/// The lease that goes first: the one that would end first.
fn first_lease(leases: &Leases) -> Option<Victim> {
    leases.first().map(|lease: &Lease| Victim::Lease(lease.id))
}

/// The policies that there are, by name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PolicyKind {
    /// [`Fcfs`].
    #[default]
    Fcfs,
    /// [`Priority`].
    Priority,
    /// [`StrictPriority`].
    StrictPriority,
}

impl PolicyKind {
    /// All of them.
    pub const ALL: [PolicyKind; 3] = [Self::Fcfs, Self::Priority, Self::StrictPriority];

    /// The policy.
    pub fn policy(self) -> Box<dyn Policy> {
        match self {
            Self::Fcfs => Box::new(Fcfs),
            Self::Priority => Box::new(Priority),
            Self::StrictPriority => Box::new(StrictPriority),
        }
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
        let found = Self::ALL.into_iter().find(|kind| kind.policy().name() == s);
        found.ok_or_else(|| {
            format!("there is no policy `{s}`: use fcfs, priority or strict-priority")
        })
    }
}
