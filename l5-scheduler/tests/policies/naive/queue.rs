//! The waiting queue: which requests are taken, their order, and the jobs that they are steps of.

use l5_scheduler::{FinishReason, PolicyKind, Rank, Time};

use super::{Naive, NaiveRequest};

/// Tenant and job id.
pub(super) type JobName = (Option<String>, String);

impl Naive {
    /// Adds a request. Returns whether it is taken.
    pub fn add(&mut self, mut request: NaiveRequest) -> bool {
        let more = usize::from(request.max_tokens > 1);
        let taken = request.prompt > 0
            && request.prompt < self.config.max_model_len
            && self.blocks(request.prompt + more) < self.config.num_gpu_blocks;
        if taken {
            self.back += 1;
            request.ticket = self.back;
            request.job_arrival = request.arrival;
            if let Some(job) = &request.job {
                match self.jobs.iter().find(|(name, _)| name == job) {
                    Some((_, began)) => request.job_arrival = *began,
                    None => self.jobs.push((job.clone(), request.arrival)),
                }
            }
            self.waiting.push(request);
            self.sort();
        }
        taken
    }

    fn has_lease(&self, job: &JobName) -> bool {
        self.leases.iter().any(|lease| lease.job.as_ref() == Some(job))
    }

    /// Rank of a waiting request, as its policy gives it now.
    pub(super) fn rank(&self, request: &NaiveRequest) -> Rank {
        if self.leased_first {
            let leased = request.job.as_ref().is_some_and(|job| self.has_lease(job));
            let (class, arrival) = (i64::from(!leased), Time(request.job_arrival));
            return Rank { class, arrival, tie: request.ticket, ..Rank::default() };
        }
        if self.config.policy == PolicyKind::Fcfs {
            return Rank { tie: request.ticket, ..Rank::default() };
        }
        let (class, deadline, arrival) = request.urgency(self.config.policy);
        Rank { class, deadline, arrival, tie: request.id as i64 }
    }

    pub(super) fn sort(&mut self) {
        let mut waiting = std::mem::take(&mut self.waiting);
        waiting.sort_by_key(|request| self.rank(request));
        self.waiting = waiting;
    }

    /// The waiting request that is tried first: one whose load has arrived, if there is one. One that is loading cannot
    /// be admitted.
    pub(super) fn head(&self) -> Option<&NaiveRequest> {
        let arrived = self.waiting.iter().find(|request| request.has_arrived());
        arrived.or_else(|| self.waiting.iter().find(|request| request.load.is_none()))
    }

    /// Waiting requests: those whose load has arrived, those that are loading, and the others.
    pub(super) fn waiting_ids(&self) -> Vec<u64> {
        let arrived = self.waiting.iter().filter(|request| request.has_arrived());
        let loading = self.waiting.iter().filter(|request| request.is_loading());
        let others = self.waiting.iter().filter(|request| request.load.is_none());
        arrived.chain(loading).chain(others).map(|request| request.id).collect()
    }

    /// A request has ended. Its job is over if it was the last step, and no other request of the job is left.
    pub(super) fn end(&mut self, request: &NaiveRequest, reason: FinishReason) {
        self.ended.push((request.id, reason));
        let Some(job) = &request.job else { return };
        let mut others = self.running.iter().chain(&self.waiting);
        let over = others.all(|other| other.id == request.id || other.job.as_ref() != Some(job));
        if request.last_step && over {
            self.jobs.retain(|(name, _)| name != job);
        }
    }
}
