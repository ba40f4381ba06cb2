//! Ranks of waiting requests that change while they wait.

use super::Scheduler;
use crate::queue::WaitingQueue;
use crate::{JobKey, Status};

impl Scheduler {
    /// Asks the policy for the ranks of a job's waiting requests again, and moves them to their new positions in the
    /// queue. The scheduler does so itself when a lease of the job begins or ends, if the policy
    /// [`orders_by_leases`](crate::Policy::orders_by_leases).
    ///
    /// The cost is logarithmic in the length of the queue, for each of the job's waiting requests.
    pub fn rerank(&mut self, job: &JobKey) {
        for nth in 0..self.requests.steps(job).len() {
            self.rerank_request(self.requests.steps(job)[nth]);
        }
    }

    /// Moves a request to its new position in the queue, if it waits.
    pub(super) fn rerank_request(&mut self, key: u32) {
        let before = self.requests.at(key).rank;
        let Some(queue) = self.queue_of(key) else { return };
        queue.remove(before);
        let rank = self.policy.order(&self.requests.at(key).view(), &self.context());
        self.requests.at_mut(key).rank = rank;
        if let Some(queue) = self.queue_of(key) {
            queue.insert(rank, key);
        }
    }

    /// The queue in which a request waits.
    fn queue_of(&mut self, key: u32) -> Option<&mut WaitingQueue> {
        let entry = self.requests.at(key);
        match entry.status {
            Status::Running => None,
            Status::Waiting => Some(&mut self.waiting),
            Status::WaitingForKv if entry.load_in_flight().is_some() => Some(&mut self.loading),
            Status::WaitingForKv => Some(&mut self.arrived),
        }
    }

    /// A lease of this job has begun or ended.
    pub(super) fn rerank_after_lease(&mut self, job: Option<&JobKey>) {
        if let Some(job) = job.filter(|_| self.policy.orders_by_leases()) {
            self.rerank(job);
        }
    }
}
