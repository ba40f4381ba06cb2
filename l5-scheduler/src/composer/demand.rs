//! What a composer decides by.

use crate::requests::Requests;
use crate::{Policy, RequestView, SchedulerConfig, Time};

/// What could run in the next step: the running requests, and the head of the waiting queue. The rest of the queue is
/// not shown, because planning must not cost more when more requests wait.
#[derive(Clone, Copy)]
pub struct Demand<'a> {
    /// Time for which the step is planned.
    pub now: Time,
    /// Number of requests that can be admitted before all seats are taken.
    pub free_seats: usize,
    /// Configuration of the scheduler.
    pub config: &'a SchedulerConfig,
    pub(crate) running: &'a [u32],
    pub(crate) requests: &'a Requests,
    pub(crate) head: Option<u32>,
    pub(crate) policy: &'a dyn Policy,
}

impl<'a> Demand<'a> {
    /// Running requests, in the order of admission.
    pub fn running(&self) -> impl ExactSizeIterator<Item = RequestView<'a>> + use<'a> {
        let requests = self.requests;
        self.running.iter().map(move |key| requests.at(*key).view())
    }

    /// Running requests that decode, in the order of admission.
    pub fn decoding(&self) -> impl Iterator<Item = RequestView<'a>> + use<'a> {
        self.running().filter(RequestView::decodes)
    }

    /// Running requests whose prompts are not computed to the end, in the order of admission.
    pub fn prefilling(&self) -> impl Iterator<Item = RequestView<'a>> + use<'a> {
        self.running().filter(|request| !request.decodes())
    }

    /// The request that would be admitted first, if it could have a seat: a free one, or that of a request which the
    /// policy lets it preempt. Whether there are blocks for it is not known yet.
    pub fn head(&self) -> Option<RequestView<'a>> {
        let head = self.requests.at(self.head?).view();
        let could = self.free_seats > 0
            || self.running().any(|request| self.policy.may_preempt(&request, &head));
        could.then_some(head)
    }
}
