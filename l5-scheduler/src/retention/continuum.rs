//! `continuum`: blocks of an agent's step are held for a time that its tool's pauses suggest.

use std::collections::HashSet;

use super::Retain;
use super::gaps::Gaps;
use super::pauses::{Pauses, is_last};
use super::tools::{ToolId, Tools, called_name};
use super::ttl::{FIXED_TTL, Gain, Memory, Ttl, best_ttl};
use crate::{
    FinishReason, LeaseId, Note, PolicyContext, PolicyEvent, RequestId, RequestView, Retention,
    Time,
};

/// Number of pauses that are recorded of each tool.
const RECORDS: usize = 128;

/// Number of pauses that are recorded of all tools together, and of waits.
const ALL_RECORDS: usize = 512;

/// Holds the blocks of a step of a job that calls a tool, for a time to live ([`Ttl`]). The rules, from Li et al. 2025,
/// "Continuum" (arXiv 2511.02230), and its published program:
///
/// - A step that is its job's last one, calls no known tool, or is no step of a job leaves no lease.
/// - `fixed`: 2 s, and no lease if the tool's mean pause is longer than that.
/// - `cdf`: the time that pays most by the recorded pauses, and no lease if that is 0.
/// - A waiting request ends no lease, and neither does one that grows (the policy preempts a request instead), unless at
///   most one request runs. Then the lease that would expire last ends first, and never one of a job of which a step
///   has arrived.
///
/// Pauses are recorded for each tool of each tenant: from the end of a step to the arrival of the job's next one.
#[derive(Debug)]
pub struct Continuum {
    ttl: Ttl,
    tools: Tools,
    pauses: Pauses,
    all: Gaps,
    /// Waits of steps that came back without a lease.
    waits: Gaps,
    /// Unfinished steps that came back without a lease.
    lost: HashSet<RequestId>,
    memory: Memory,
}

impl Continuum {
    /// Creates the retention.
    pub fn new(ttl: Ttl) -> Self {
        Self {
            ttl,
            tools: Tools::new(RECORDS),
            pauses: Pauses::default(),
            all: Gaps::new(ALL_RECORDS),
            waits: Gaps::new(ALL_RECORDS),
            lost: HashSet::new(),
            memory: Memory::default(),
        }
    }

    /// A step has finished and calls the tool of a note, whose pause begins. Returns the tool, unless it is not known.
    pub(super) fn begin_pause(
        &mut self,
        finished: &RequestView<'_>,
        note: Option<&Note>,
        now: Time,
    ) -> Option<ToolId> {
        let tool = self.tools.called(finished, note);
        self.pauses.finished(finished, tool, now);
        tool
    }

    /// Recorded pauses of a tool.
    pub(super) fn pauses_of(&self, tool: Option<ToolId>) -> Option<&Gaps> {
        self.tools.gaps(tool?)
    }

    /// Time to live of a lease of a request that called a tool with these pauses; 0 for no lease.
    pub(super) fn seconds(
        &self,
        finished: &RequestView<'_>,
        gaps: Option<&Gaps>,
        context: &PolicyContext<'_>,
    ) -> f64 {
        match self.ttl {
            Ttl::Fixed if gaps.and_then(Gaps::mean).is_some_and(|mean| mean > FIXED_TTL) => 0.0,
            Ttl::Fixed => FIXED_TTL,
            Ttl::Cdf => {
                let per_token = context.cost.map_or(0.0, |cost| cost.per_prefill_token);
                let gain = Gain {
                    wait: self.waits.mean().unwrap_or(0.0),
                    eta: self.memory.eta(),
                    reload: per_token * finished.num_computed() as f64,
                };
                best_ttl(gain, &self.all, gaps)
            }
        }
    }
}

impl Retention for Continuum {
    fn retain(
        &mut self,
        finished: &RequestView<'_>,
        note: Option<&Note>,
        context: &PolicyContext<'_>,
    ) -> Retain {
        let tool = self.begin_pause(finished, note, context.now);
        if called_name(finished, note).is_none() {
            return Retain::Free;
        }
        let seconds = self.seconds(finished, self.pauses_of(tool), context);
        if seconds > 0.0 { Retain::LeaseUntil(context.now + seconds) } else { Retain::Free }
    }

    fn lease_for(
        &self,
        _needy: &RequestView<'_>,
        named: &[LeaseId],
        context: &PolicyContext<'_>,
    ) -> Option<LeaseId> {
        // exercise l5.steal
        if context.num_running > 1 {
            return None;
        }
        let mut before = named.last().copied();
        loop {
            let lease = context.leases.last_to_expire(before)?;
            if lease.job_key.as_ref().is_none_or(|job| self.pauses.is_paused(job)) {
                return Some(lease.id);
            }
            before = Some(lease.id);
        }
        // end of exercise
    }

    fn observe(&mut self, event: &PolicyEvent<'_>, context: &PolicyContext<'_>) {
        match event {
            PolicyEvent::Arrived(request) => {
                let Some(pause) = self.pauses.arrived(request) else { return };
                let gap = request.arrival() - pause.since;
                self.all.add(gap);
                if let Some(tool) = pause.tool {
                    self.tools.add(tool, gap);
                }
                if !context.has_lease(request) {
                    self.lost.insert(request.id());
                }
            }
            PolicyEvent::Finished(request, reason) => {
                let completed = matches!(reason, FinishReason::Stop | FinishReason::Length);
                if self.lost.remove(&request.id())
                    && let Some(admitted) = request.admitted()
                {
                    self.waits.add(admitted - request.arrival());
                }
                if let Some(steps) = self.pauses.ended(request)
                    && completed
                    && is_last(request)
                {
                    self.memory.add(steps);
                }
            }
            _ => {}
        }
    }
}
