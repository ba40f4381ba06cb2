//! The shape of the step that is being planned, and what happens if it has no rows.

use super::Scheduler;
use crate::StepShape;
use crate::composer::{Composition, Demand};

/// Attempt to plan a step. The next one follows if a step has no rows and its composition is to blame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Attempt {
    /// As the composer decides.
    Usual,
    /// As the composer decides for the running requests: the head of the queue was not admitted.
    Running,
    /// Whatever can run.
    Any,
}

impl Attempt {
    pub(super) const ALL: [Self; 3] = [Self::Usual, Self::Running, Self::Any];
}

impl Scheduler {
    /// Decides the shape of the step and the adapters of its rows.
    pub(super) fn compose(&mut self, attempt: Attempt) {
        if attempt == Attempt::Any {
            self.step.shape = StepShape::Mixed;
            self.turn.first();
            return;
        }
        let free_seats = self.free_seats();
        let Self { policy, requests, running, config, step, turn, arrived, waiting, .. } = self;
        let Some(composer) = &self.composer else {
            step.shape = StepShape::Mixed;
            return;
        };
        let head = arrived.next(None).or_else(|| waiting.next(None));
        let Composition { shape, turn: adapters } = composer.begin(&Demand {
            now: step.now,
            free_seats,
            config,
            running,
            requests,
            head: head.map(|(_, key)| key).filter(|_| attempt == Attempt::Usual),
            policy: &**policy,
        });
        step.shape = shape;
        turn.set(adapters);
    }

    /// Whether a step without rows was limited by its composition, so that another one may have rows. Once a request
    /// was preempted or has ended, the next step is another one in any case.
    pub(super) fn gives_way(&self) -> bool {
        let limited = self.step.shape != StepShape::Mixed || self.turn.is_limited();
        limited
            && self.is_idle()
            && self.running.len() + self.arrived.len() + self.waiting.len() > 0
    }

    /// Whether the step has neither rows, nor requests that it preempted or ended.
    pub(super) fn is_idle(&self) -> bool {
        let step = &self.step;
        step.rows.is_empty() && step.preempted.is_empty() && step.ended.is_empty()
    }
}
