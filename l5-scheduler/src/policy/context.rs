//! What a policy is told: the state in which it is asked, and what happened before.

use crate::lease::Leases;
use crate::{CostModel, FinishReason, Lease, RequestId, RequestView, SchedulerConfig, Time};

/// State of the scheduler when it asks a policy or a retention.
#[derive(Clone, Copy, Debug)]
pub struct PolicyContext<'a> {
    /// The latest time that the scheduler was told: that of the last plan, or the end of the last step.
    pub now: Time,
    /// The scheduler's configuration.
    pub config: &'a SchedulerConfig,
    /// All leases.
    pub leases: &'a Leases,
    /// Number of free blocks.
    pub num_free: usize,
    /// Number of running requests.
    pub num_running: usize,
    /// Cost model of a step, if the executor published one.
    pub cost: Option<&'a CostModel>,
    /// Seconds to compute a token of a prompt: of the cost model, else as measured. `None`: not known yet.
    pub prefill_seconds_per_token: Option<f64>,
    /// The memory for blocks behind the pool. `None` if there is none, or if the executor cannot store blocks.
    pub second_memory: Option<SecondMemory>,
    /// A waiting request that is owed its turn by the [service floor](crate::Policy::service_floor), until it is
    /// admitted.
    pub promoted: Option<RequestId>,
}

/// State of the memory behind the pool, when the step was planned.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SecondMemory {
    /// Number of blocks that can be copied there and kept.
    pub room: usize,
    /// Seconds to load a block from there, if known.
    pub load_seconds_per_block: Option<f64>,
}

impl SecondMemory {
    /// Seconds to load so many blocks; 0 if that is not known.
    pub fn load_seconds(&self, blocks: usize) -> f64 {
        self.load_seconds_per_block.unwrap_or(0.0) * blocks as f64
    }
}

impl PolicyContext<'_> {
    /// Whether the job of which a request is a step has a lease.
    pub fn has_lease(&self, request: &RequestView<'_>) -> bool {
        request.job_key().is_some_and(|job| !self.leases.of_job(job).is_empty())
    }

    /// Whether a request is owed its turn.
    pub fn is_promoted(&self, request: &RequestView<'_>) -> bool {
        self.promoted == Some(request.id())
    }
}

/// Something that happened to a request or a lease, for policies that learn.
///
/// None of these is undone. A step that is abandoned takes admissions back, of which no policy is told; preemptions,
/// ended leases and ended requests stay as they are when the step that was planned with them is abandoned.
#[derive(Clone, Copy, Debug)]
pub enum PolicyEvent<'a> {
    /// A request was added.
    Arrived(RequestView<'a>),
    /// A running request was preempted. It waits now. Told while a step is planned, or when the cache is reset.
    Preempted(RequestView<'a>),
    /// A request has ended, for this reason. Told when a step is applied; for aborted requests and those that outgrew
    /// the pool, also at other times.
    Finished(RequestView<'a>, FinishReason),
    /// A lease was made, of a request whose [`PolicyEvent::Finished`] follows. Told when a step is applied. If the request
    /// had a row in a step that was [planned ahead](crate::Scheduler::plan_ahead), its end comes first, and the lease
    /// when that step is applied or abandoned.
    Leased(&'a Lease),
    /// A lease has ended; it is not among the leases any more.
    LeaseEnded(&'a Lease, LeaseEnd),
}

/// Why a lease ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseEnd {
    /// Its time had come. Told while a step is planned.
    Expired,
    /// A waiting request needed its blocks. Told while a step is planned.
    ForWaiting,
    /// A running request needed its blocks. Told while a step is planned.
    ForRunning,
    /// The next step of its job has finished, and holds all of its blocks. Told when a step is applied.
    Outlived,
    /// The last step of its job has finished. Told when a step is applied.
    JobOver,
    /// Its job had too many leases. Told when a step is applied.
    Surplus,
    /// Leases held too many blocks, and the retention named this one
    /// ([`Retention::displaced`](crate::Retention::displaced)). Told when a step is applied.
    Displaced,
    /// The engine ends, and what leases hold is written back.
    Shutdown,
    /// The prefix cache was reset.
    Reset,
    /// Its blocks have been stored elsewhere, or will not be.
    Stored,
}

impl LeaseEnd {
    /// Name in recordings.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Expired => "expired",
            Self::ForWaiting => "for_waiting",
            Self::ForRunning => "for_running",
            Self::Outlived => "outlived",
            Self::JobOver => "job_over",
            Self::Surplus => "surplus",
            Self::Displaced => "displaced",
            Self::Shutdown => "shutdown",
            Self::Reset => "reset",
            Self::Stored => "stored",
        }
    }
}
