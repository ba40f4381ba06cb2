//! Retention: what happens to the blocks of a finished request, and which lease ends when blocks are needed.

mod adaptive;
mod context_serve;
mod continuum;
mod gaps;
mod offload;
mod pauses;
mod pins;
mod tools;
mod ttl;

use crate::policy::{PolicyContext, PolicyEvent};
use crate::{Lease, LeaseId, Note, RequestView, Time};

pub use adaptive::Adaptive;
pub use context_serve::{ContextServe, TreesError};
pub use continuum::Continuum;
pub use offload::LmCache;
pub(crate) use offload::OffloadFreed;
pub use ttl::{FIXED_TTL, Ttl};

/// What happens to the blocks of a finished request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Retain {
    /// They are free. Until another request takes them, their contents can be hit in the prefix cache.
    Free,
    /// A lease holds them until this time, or until the pool needs its blocks. NaN is as [`Retain::Free`].
    LeaseUntil(Time),
    /// A lease holds them until the pool needs its blocks.
    Keep,
    /// They are copied to another memory (DRAM, disk), and are free when that is done. As [`Retain::Free`] if the
    /// executor cannot store blocks ([`Caps::can_store`](crate::Caps)).
    Offload,
}

/// Contents of blocks that are about to leave the pool.
#[derive(Clone, Copy, Debug)]
pub enum Leaving<'a> {
    /// Blocks of a lease that ends because others need them, or because its time has come.
    Lease(&'a Lease),
    /// Blocks of a running request that is preempted.
    Request(RequestView<'a>),
}

/// Decides for the scheduler which finished requests leave a lease, and which lease ends when blocks are needed.
///
/// A retention may learn from [`Retention::observe`]. The same requests, clock and history must give the same answers.
///
/// # Example
///
/// A retention that holds the blocks of each step of a job for twice as long as the job's last pause, and never ends a
/// lease for a waiting request while others run:
///
/// ```
/// use std::collections::HashMap;
///
/// use l5_scheduler::{
///     Job, JobKey, LeaseId, Note, PolicyContext, PolicyEvent, RequestView, Retain, Retention, Scheduler,
///     SchedulerConfig, Status, Time,
/// };
///
/// #[derive(Default)]
/// struct TwiceTheLastPause {
///     finished: HashMap<JobKey, Time>,
///     pause: HashMap<JobKey, f64>,
/// }
///
/// impl Retention for TwiceTheLastPause {
///     fn retain(
///         &mut self,
///         finished: &RequestView<'_>,
///         _note: Option<&Note>,
///         context: &PolicyContext<'_>,
///     ) -> Retain {
///         match (finished.job(), finished.job_key()) {
///             (Some(Job { last_step: false, .. }), Some(job)) => {
///                 Retain::LeaseUntil(context.now + 2.0 * self.pause.get(job).copied().unwrap_or(1.0))
///             }
///             _ => Retain::Free,
///         }
///     }
///
///     fn lease_for(
///         &self,
///         needy: &RequestView<'_>,
///         named: &[LeaseId],
///         context: &PolicyContext<'_>,
///     ) -> Option<LeaseId> {
///         let runs = needy.status() == Status::Running;
///         runs.then(|| context.leases.next_to_expire(named.last().copied()))?.map(|lease| lease.id)
///     }
///
///     fn observe(&mut self, event: &PolicyEvent<'_>, context: &PolicyContext<'_>) {
///         match event {
///             PolicyEvent::Arrived(request) => {
///                 let Some(job) = request.job_key() else { return };
///                 if let Some(before) = self.finished.remove(job) {
///                     self.pause.insert(job.clone(), request.arrival() - before);
///                 }
///             }
///             PolicyEvent::Finished(request, _) => {
///                 let Some(job) = request.job_key() else { return };
///                 match request.job() {
///                     Some(Job { last_step: false, .. }) => _ = self.finished.insert(job.clone(), context.now),
///                     _ => _ = self.pause.remove(job),
///                 }
///             }
///             _ => {}
///         }
///     }
/// }
///
/// let scheduler = Scheduler::new(SchedulerConfig::new(64, 16))?;
/// let scheduler = scheduler.with_retention(Box::new(TwiceTheLastPause::default()));
/// assert_eq!(scheduler.retained_blocks(), 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// (Jobs that never return stay in these two maps: a retention for production bounds them.)
pub trait Retention: Send {
    /// Decides what happens to the blocks of a request that finished at `context.now`. Asked when a step is applied,
    /// for requests that finished with [`FinishReason::Stop`](crate::FinishReason) or
    /// [`FinishReason::Length`](crate::FinishReason). `note` is the executor's last one on this request.
    fn retain(
        &mut self,
        finished: &RequestView<'_>,
        note: Option<&Note>,
        context: &PolicyContext<'_>,
    ) -> Retain {
        let _ = (finished, note, context);
        Retain::Free
    }

    /// Names a lease that ends for `needy`, beside those that it has `named` for this request already. `None`: no
    /// further one.
    ///
    /// `needy` waits and does not fit ([`Status::Waiting`](crate::Status) or
    /// [`Status::WaitingForKv`](crate::Status)), or runs and needs a block ([`Status::Running`](crate::Status)). The
    /// scheduler asks until the named leases free enough, and then ends those of them that free a block; if they do not
    /// free enough for a waiting request, no lease ends. An answer that is no lease, or one that was named already, or
    /// one whose blocks are being stored, counts as `None`.
    ///
    /// A refusal does not hold for a running request while no other one runs or loads, because it could preempt itself,
    /// and be admitted again, for ever: leases end in the order of expiry then.
    ///
    /// While no request runs or loads, a refusal does not hold, because the waiting request could wait for ever: leases
    /// end in the order of expiry then.
    ///
    /// It is asked once for each lease: `n` times for a request that needs the blocks of `n` leases, and again in each
    /// step while a request waits at the head of the queue, unless it is known that all leases together are not enough.
    /// So an answer should be found without a look at all leases, which would make `n` * `n` looks:
    /// [`Leases::next_to_expire`](crate::lease::Leases::next_to_expire) finds the next one in the order of expiry in
    /// O(log n), and a retention with an order of its own keeps that order in [`Retention::observe`]. Only a search in
    /// `named` costs O(n).
    ///
    /// The default names all leases in the order of expiry, for waiting and running requests alike.
    fn lease_for(
        &self,
        needy: &RequestView<'_>,
        named: &[LeaseId],
        context: &PolicyContext<'_>,
    ) -> Option<LeaseId> {
        let _ = needy;
        context.leases.next_to_expire(named.last().copied()).map(|lease| lease.id)
    }

    /// Names a lease that ends because leases hold too many blocks. Asked after a lease was made, until the answer is
    /// `None` or a lease that cannot be ended. The default limits leases by nothing.
    fn displaced(&self, context: &PolicyContext<'_>) -> Option<LeaseId> {
        let _ = context;
        None
    }

    /// Decides whether contents that are about to leave the pool are copied to the memory behind it
    /// ([`StepOp::WriteBack`](crate::StepOp::WriteBack)): `Some` with the time until which the copy should be kept, which
    /// may be past. Asked only if the executor can store blocks. The default copies nothing.
    fn write_back(&self, leaving: &Leaving<'_>, context: &PolicyContext<'_>) -> Option<Time> {
        let _ = (leaving, context);
        None
    }

    /// Learns from something that happened. See [`PolicyEvent`] for what an abandoned step does not undo.
    fn observe(&mut self, event: &PolicyEvent<'_>, context: &PolicyContext<'_>) {
        let _ = (event, context);
    }
}

/// Leaves no leases: the blocks of a finished request are free.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoLeases;

impl Retention for NoLeases {}
