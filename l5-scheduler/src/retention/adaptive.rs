//! `adaptive`: blocks of agents' steps are held until the pool needs them, and the job that stays away longest goes
//! first.

use super::Retain;
use super::pauses::{Pauses, returns};
use super::pins::Pins;
use super::tools::{ToolId, Tools};
use crate::{
    JobKey, LeaseId, Leaving, Note, PolicyContext, PolicyEvent, RequestView, Retention, Status,
    Time,
};

/// Number of pauses that are recorded of each tool.
const RECORDS: usize = 64;

/// Share of the pool that leases may hold.
const CAP: f64 = 0.9;

/// Share of `tau*`: a job that comes back sooner keeps its blocks, even if leases hold most of the pool.
const SOON: f64 = 0.25;

/// Time to compute a token of a prompt before it is known, in seconds.
const PREFILL_SECONDS_PER_TOKEN: f64 = 1.0 / 12_000.0;

/// Seconds for which the copy of a job's blocks is not evicted for another copy. A job that stays away for longer has no
/// such claim.
const KEEP_SECONDS: f64 = 60.0;

/// Holds the blocks of each step of a job but the last, without a deadline. Which lease ends when blocks are needed
/// follows from how long its job is expected to stay away, by the recorded pauses of the tool that it called
/// (`N` blocks in the pool, `B` tokens a block, `a` seconds to compute a token of a prompt):
///
/// ```text
/// E(lease) = (age + sum of (gap - age) over recorded gaps > age) / (1 + number of these gaps)
/// tau*     = a * B * N        time to compute the whole pool again
/// ```
///
/// - If leases hold more than 0.9 `N` blocks, the one with the largest `E` ends, which may be the new one. To refuse the
///   new one would let jobs that never come back hold the pool. But if even the largest `E` is below 0.25 `tau*` and there
///   is no memory behind the pool with room for the blocks, none ends: all jobs are about to use theirs, and each would
///   push the next one out.
/// - A running request that grows ends the lease with the largest `E`. Only without one it preempts.
/// - A waiting request ends the lease with the largest `E` if that is above `tau*`, if nothing runs, or if it is owed its
///   turn ([`Policy::service_floor`](crate::Policy::service_floor)). Else it waits.
///   (A lease of `n` blocks saves `a * B * n` seconds of the machine and holds `n` of `N` blocks for `E` seconds. When
///   the pool is full, a block for a second is worth `1 / N` of a second of the machine, so the lease pays if
///   `E / N < a * B`, whatever `n` is.)
/// - The lease of a job of which a step waits does not end for another request: it is about to be used.
///
/// Where there is a memory behind the pool, a lease that ends early costs a load and not a computation:
///
/// - Its `n` blocks are copied there. So are those of a preempted request, if there is room. What a finished request
///   without a job would free is stored as `lmcache` does; the blocks of a job's last step are of no use.
/// - The copy of a job's blocks is not evicted for another one for 60 s, unless they are loaded before or `E` was longer
///   than that.
/// - While the memory has room for `n` blocks, a waiting request ends the lease if `E` is above
///   `2 load(n) + 0.1 tau*`. The copy goes out and comes in again; a tenth of `tau*` keeps leases from ending for gains
///   that are smaller than the error of `E`.
///
/// Pauses are recorded for each tool of each tenant, the last 64; those of steps that call no tool count as those of one.
/// A choice costs a look at 65 leases of each tool at most, however many there are (`retention/pins.rs`).
#[derive(Debug)]
pub struct Adaptive {
    tools: Tools,
    pauses: Pauses,
    pins: Pins,
}

impl Default for Adaptive {
    fn default() -> Self {
        Self { tools: Tools::new(RECORDS), pauses: Pauses::default(), pins: Pins::default() }
    }
}

impl Adaptive {
    /// Seconds to compute the whole pool again: `tau*`.
    fn pool_seconds(context: &PolicyContext<'_>) -> f64 {
        let per_token = context.prefill_seconds_per_token.unwrap_or(PREFILL_SECONDS_PER_TOKEN);
        per_token * (context.config.capacity() * context.config.block_size) as f64
    }

    /// Expected rest from which a lease of so many blocks ends for a waiting request.
    fn threshold(blocks: usize, context: &PolicyContext<'_>) -> f64 {
        let pool = Self::pool_seconds(context);
        match context.second_memory.filter(|memory| blocks <= memory.room) {
            None => pool,
            Some(memory) => 2.0 * memory.load_seconds(blocks) + 0.1 * pool,
        }
    }

    /// Tool that a lease's job waits for.
    fn tool_of(&mut self, lease: LeaseId, context: &PolicyContext<'_>) -> Option<ToolId> {
        let lease = context.leases.get(lease)?;
        self.find_tool(lease.job_key.as_ref(), lease.tool.as_deref())
    }

    /// A tool of a tenant. Steps that call none have records of their own: a user who reads and writes is a tool, too.
    fn find_tool(&mut self, job: Option<&JobKey>, name: Option<&str>) -> Option<ToolId> {
        self.tools.find(job?.tenant.as_deref(), name.unwrap_or(""))
    }

    /// Adds the leases of a job to those that may end for others.
    fn pin(&mut self, job: &JobKey, context: &PolicyContext<'_>) {
        for lease in context.leases.of_job(job) {
            let Some(since) = context.leases.get(*lease).filter(|l| l.can_end()).map(|l| l.since)
            else {
                continue;
            };
            let tool = self.tool_of(*lease, context);
            if self.pins.insert(*lease, tool, since)
                && let Some(tool) = tool
            {
                self.tools.hold(tool);
            }
        }
    }

    /// Removes a lease from them.
    fn unpin(&mut self, lease: LeaseId) {
        if let Some(tool) = self.pins.remove(lease).flatten() {
            self.tools.release(tool);
        }
    }
}

impl Retention for Adaptive {
    fn retain(
        &mut self,
        finished: &RequestView<'_>,
        note: Option<&Note>,
        context: &PolicyContext<'_>,
    ) -> Retain {
        let name = note.and_then(|note| note.tool.as_deref());
        let tool = self.find_tool(finished.job_key(), name);
        self.pauses.finished(finished, tool, context.now);
        match finished.job_key() {
            _ if returns(finished) => Retain::Keep,
            // A chat whose client does not say so may come back, too.
            None if context.second_memory.is_some() => Retain::Offload,
            _ => Retain::Free,
        }
    }

    fn lease_for(
        &self,
        needy: &RequestView<'_>,
        named: &[LeaseId],
        context: &PolicyContext<'_>,
    ) -> Option<LeaseId> {
        let (rest, lease) = self.pins.longest(&self.tools, context.now, named)?;
        let any = needy.status() == Status::Running
            || context.num_running == 0
            || context.is_promoted(needy);
        let blocks = context.leases.get(lease).map_or(0, |lease| lease.blocks);
        (any || rest > Self::threshold(blocks, context)).then_some(lease)
    }

    fn displaced(&self, context: &PolicyContext<'_>) -> Option<LeaseId> {
        let most = CAP * context.config.capacity() as f64;
        if context.leases.blocks() as f64 <= most {
            return None;
        }
        let (rest, longest) = self.pins.longest(&self.tools, context.now, &[])?;
        let blocks = context.leases.get(longest).map_or(0, |lease| lease.blocks);
        let is_lost = context.second_memory.is_none_or(|memory| memory.room < blocks);
        let soon = is_lost && rest <= SOON * Self::pool_seconds(context);
        (!soon).then_some(longest)
    }

    fn write_back(&self, leaving: &Leaving<'_>, context: &PolicyContext<'_>) -> Option<Time> {
        let memory = context.second_memory?;
        let soon = context.now + KEEP_SECONDS;
        match leaving {
            Leaving::Lease(lease) => {
                let rest = self.pins.rest(&self.tools, context.now, lease.id);
                Some(if rest.is_none_or(|rest| rest <= KEEP_SECONDS) { soon } else { context.now })
            }
            Leaving::Request(request) => {
                let blocks = request.num_computed() / context.config.block_size;
                (blocks <= memory.room).then_some(soon)
            }
        }
    }

    fn observe(&mut self, event: &PolicyEvent<'_>, context: &PolicyContext<'_>) {
        match event {
            PolicyEvent::Arrived(request) => {
                if let Some(pause) = self.pauses.arrived(request)
                    && let Some(tool) = pause.tool
                {
                    self.tools.add(tool, request.arrival() - pause.since);
                }
                let job = request.job_key();
                let leases = job.map_or(&[][..], |job| context.leases.of_job(job));
                for lease in leases {
                    self.unpin(*lease);
                }
            }
            PolicyEvent::Leased(lease) => {
                let Some(job) = &lease.job_key else { return };
                if self.pauses.is_paused(job) {
                    self.pin(job, context);
                }
            }
            PolicyEvent::LeaseEnded(lease, _) => self.unpin(lease.id),
            PolicyEvent::Finished(request, _) => {
                let (alone, job) = (self.pauses.ended(request).is_some(), request.job_key());
                if let Some(job) = job.filter(|_| alone) {
                    self.pin(job, context);
                }
            }
            PolicyEvent::Preempted(_) => {}
        }
    }
}
