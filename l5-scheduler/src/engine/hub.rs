//! Receivers of step results: the outboxes of the requests, and the observers.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::outbox::Outbox;
use crate::{
    Admitted, FinishReason, Rejection, RequestId, RequestView, Scheduler, StepObserver, StepResult,
    StepView, Time,
};

/// A hub for the engine's loop and one for the core, with shared contents. Only the engine's thread locks it.
#[derive(Clone, Default)]
pub(super) struct Hub(Arc<Mutex<Inner>>);

#[derive(Default)]
struct Inner {
    /// Outboxes of unfinished requests.
    live: HashMap<RequestId, Arc<Outbox>>,
    observers: Vec<Box<dyn StepObserver>>,
}

impl Hub {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds an observer between two steps. If a step `runs`, it is told of that one.
    pub(super) fn observe(
        &self,
        mut observer: Box<dyn StepObserver>,
        scheduler: &Scheduler,
        runs: bool,
    ) {
        observer.attached(scheduler);
        if runs {
            observer.planned(&scheduler.due(), scheduler);
        }
        self.lock().observers.push(observer);
    }

    pub(super) fn begin(&self, id: RequestId, outbox: Arc<Outbox>) {
        self.lock().live.insert(id, outbox);
    }

    /// Unfinished requests, in the order of their ids.
    pub(super) fn live(&self) -> Vec<RequestId> {
        let mut live: Vec<_> = self.lock().live.keys().copied().collect();
        live.sort_unstable();
        live
    }

    /// Removes all requests and reports this finish reason to the observers.
    pub(super) fn close(&self, finish: FinishReason) -> Vec<Arc<Outbox>> {
        let mut inner = self.lock();
        let (ended, outboxes): (Vec<_>, _) =
            inner.live.drain().map(|(id, outbox)| ((id, finish), outbox)).unzip();
        inner.observers.iter_mut().for_each(|observer| observer.lost(&ended));
        outboxes
    }
}

impl Inner {
    /// Removes requests that have ended. The executor has ended their responses, except those that it does not know.
    fn ended(&mut self, ended: &[(RequestId, FinishReason)]) {
        for (id, reason) in ended {
            if let Some(outbox) = self.live.remove(id) {
                outbox.end_with(*reason, None);
            }
        }
    }
}

impl StepObserver for Hub {
    fn arrived(&mut self, request: RequestView<'_>) {
        self.lock().observers.iter_mut().for_each(|observer| observer.arrived(request));
    }

    fn rejected(&mut self, id: RequestId, arrival: Time, why: &Rejection) {
        self.lock().observers.iter_mut().for_each(|observer| observer.rejected(id, arrival, why));
    }

    fn ended(&mut self, ended: &[(RequestId, FinishReason)]) {
        self.lock().observers.iter_mut().for_each(|observer| observer.ended(ended));
    }

    fn planned(&mut self, step: &StepView<'_>, scheduler: &Scheduler) {
        let mut inner = self.lock();
        // Admitted requests come behind the running ones.
        let new = step.step().rows.iter().rev().take_while(|row| row.admitted != Admitted::Before);
        for row in new.filter(|row| row.admitted == Admitted::Now) {
            if let Some(outbox) = inner.live.get(&row.id) {
                outbox.admitted(row.cached, row.loaded());
            }
        }
        for observer in &mut inner.observers {
            observer.planned(step, scheduler);
        }
    }

    fn applied(&mut self, result: &StepResult, scheduler: &Scheduler) {
        let mut inner = self.lock();
        inner.ended(&result.finished);
        for observer in &mut inner.observers {
            observer.applied(result, scheduler);
        }
    }

    fn lost(&mut self, ended: &[(RequestId, FinishReason)]) {
        let mut inner = self.lock();
        inner.ended(ended);
        inner.observers.iter_mut().for_each(|observer| observer.lost(ended));
    }
}
