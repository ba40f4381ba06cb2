//! `adaptive`: blocks of agents' steps are held until the pool needs them, and the job that stays away longest goes
//! first.

use super::Retain;
use super::pauses::{Pauses, returns};
use super::pins::Pins;
use super::tools::{ToolId, Tools};
use crate::{JobKey, LeaseId, Note, PolicyContext, PolicyEvent, RequestView, Retention, Status};

/// Number of pauses that are recorded of each tool.
const RECORDS: usize = 64;

/// Share of the pool that leases may hold.
const CAP: f64 = 0.9;

/// Time to compute a token of a prompt where no cost model says it, in seconds.
const PREFILL_SECONDS_PER_TOKEN: f64 = 1.0 / 12_000.0;

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
///   new one would let jobs that never come back hold the pool.
/// - A running request that grows ends the lease with the largest `E`. Only without one it preempts.
/// - A waiting request ends the lease with the largest `E` if that is above `tau*`, or if nothing runs. Else it waits.
///   (A lease of `n` blocks saves `a * B * n` seconds of the machine and holds `n` of `N` blocks for `E` seconds. When
///   the pool is full, a block for a second is worth `1 / N` of a second of the machine, so the lease pays if
///   `E / N < a * B`, whatever `n` is.)
/// - The lease of a job of which a step waits does not end for another request: it is about to be used.
///
/// Pauses are recorded for each tool of each tenant, the last 64. A choice costs a look at 65 leases of each tool at
/// most, however many there are (`retention/pins.rs`).
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
    /// Time to compute the whole pool again.
    fn threshold(context: &PolicyContext<'_>) -> f64 {
        let known = context.cost.map(|cost| cost.per_prefill_token).filter(|cost| *cost > 0.0);
        let tokens = context.config.capacity() * context.config.block_size;
        known.unwrap_or(PREFILL_SECONDS_PER_TOKEN) * tokens as f64
    }

    /// Tool that a lease's job waits for.
    fn tool_of(&mut self, lease: LeaseId, context: &PolicyContext<'_>) -> Option<ToolId> {
        let lease = context.leases.get(lease)?;
        let tenant = lease.job_key.as_ref().and_then(|job| job.tenant.as_deref());
        self.tools.find(tenant, lease.tool.as_deref()?)
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
        let tool = self.tools.called(finished, note);
        self.pauses.finished(finished, tool, context.now);
        if returns(finished) { Retain::Keep } else { Retain::Free }
    }

    fn lease_for(
        &self,
        needy: &RequestView<'_>,
        named: &[LeaseId],
        context: &PolicyContext<'_>,
    ) -> Option<LeaseId> {
        let (rest, lease) = self.pins.longest(&self.tools, context.now, named)?;
        let any = needy.status() == Status::Running || context.num_running == 0;
        (any || rest > Self::threshold(context)).then_some(lease)
    }

    fn displaced(&self, context: &PolicyContext<'_>) -> Option<LeaseId> {
        let most = CAP * context.config.capacity() as f64;
        if context.leases.blocks() as f64 <= most {
            return None;
        }
        self.pins.longest(&self.tools, context.now, &[]).map(|(_, lease)| lease)
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
