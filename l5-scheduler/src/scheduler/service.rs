//! The service floor: a share of the computed tokens that belongs to each class of requests as long as one of them waits.
//!
//! A policy that prefers agents' steps whose blocks are in the pool can serve agents for ever while a chat waits: as soon
//! as one step has finished, the next of some other job arrives and goes first. So each class *earns* its share of the
//! tokens of every step, and pays with the tokens of its own rows. When the request that has waited longest in a class
//! has earned its prompt, it is promoted: the policy is asked for its rank again, and the context names it. (This is
//! deficit round robin, Shreedhar and Varghese 1995, with classes for flows and tokens for bytes.)

use std::collections::BTreeSet;

use super::Scheduler;
use crate::RequestId;
use crate::requests::Entry;

/// Number of classes: requests without a job, and steps of jobs.
const CLASSES: usize = 2;

/// What each class has earned, and which of its requests wait.
#[derive(Debug, Default)]
pub(super) struct ServiceFloor {
    /// Share of each class in the tokens of a step. 0: there is no floor.
    share: f64,
    /// Requests that were not admitted yet, in the order of arrival.
    waiting: [BTreeSet<(i64, u32)>; CLASSES],
    /// Tokens that a class has earned and not been given since its first waiting request arrived.
    earned: [f64; CLASSES],
    promoted: Option<(u32, RequestId)>,
}

impl ServiceFloor {
    pub(super) fn new(share: f64) -> Self {
        Self { share, ..Self::default() }
    }

    /// The promoted request, until it is admitted.
    pub(super) fn promoted(&self) -> Option<RequestId> {
        self.promoted.map(|(_, id)| id)
    }

    fn is_on(&self) -> bool {
        self.share > 0.0
    }

    /// Counts the tokens of a step. A class of which no request waits earns nothing, and owes nothing.
    fn count(&mut self, tokens: [usize; CLASSES]) {
        let all: usize = tokens.iter().sum();
        let classes = self.earned.iter_mut().zip(&self.waiting).zip(tokens);
        for ((earned, waiting), tokens) in classes {
            let share = self.share * all as f64 - tokens as f64;
            *earned = if waiting.is_empty() { 0.0 } else { *earned + share };
        }
    }

    /// Promotes the first request that has earned its prompt.
    fn promote(&mut self, prompt: impl Fn(u32) -> (RequestId, usize)) -> Option<u32> {
        if self.promoted.is_some() {
            return None;
        }
        for (earned, waiting) in self.earned.iter_mut().zip(&self.waiting) {
            let Some((_, key)) = waiting.first().copied() else { continue };
            let (id, tokens) = prompt(key);
            // One prompt is enough: what was earned while the pool was full is not spent in one burst.
            *earned = earned.min(tokens as f64);
            if *earned >= tokens as f64 {
                self.promoted = Some((key, id));
                return Some(key);
            }
        }
        None
    }
}

/// Class of a request. A conversation of which only the first request is known is no job yet, if jobs are
/// [inferred](crate::SchedulerConfig::infer_jobs).
fn class_of(entry: &Entry) -> usize {
    usize::from(entry.job.is_some() && !entry.opens_inferred_job)
}

impl Scheduler {
    /// A request waits for its first admission.
    pub(super) fn await_service(&mut self, key: u32) {
        if self.service.is_on() {
            let entry = self.requests.at(key);
            self.service.waiting[class_of(entry)].insert((entry.ticket, key));
        }
    }

    /// A request has been admitted, or has ended.
    pub(super) fn leave_service(&mut self, key: u32) {
        if self.service.is_on() {
            let entry = self.requests.at(key);
            self.service.waiting[class_of(entry)].remove(&(entry.ticket, key));
            self.service.promoted.take_if(|(promoted, _)| *promoted == key);
        }
    }

    /// Promotes the request that is owed its turn.
    pub(super) fn promote(&mut self) {
        if !self.service.is_on() {
            return;
        }
        let requests = &self.requests;
        let prompt = |key| (requests.at(key).id, requests.at(key).prompt_len);
        if let Some(key) = self.service.promote(prompt) {
            self.rerank_request(key);
        }
    }

    /// Counts the tokens of the step that was planned.
    pub(super) fn count_service(&mut self) {
        if !self.service.is_on() {
            return;
        }
        let mut tokens = [0; CLASSES];
        for row in &self.step.rows {
            tokens[class_of(self.requests.at(self.seats.owner(row.seat)))] += row.len;
        }
        self.service.count(tokens);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn floor() -> ServiceFloor {
        let mut floor = ServiceFloor::new(0.4);
        floor.waiting[0].insert((1, 7));
        floor
    }

    #[test]
    fn a_request_is_promoted_when_its_class_has_earned_its_prompt() {
        let mut floor = floor();
        let prompt = |_| (RequestId(70), 100);
        for _ in 0..24 {
            floor.count([0, 10]);
            assert_eq!(floor.promote(prompt), None);
        }
        floor.count([0, 10]);
        assert_eq!(floor.promote(prompt), Some(7), "0.4 of 250 tokens");
        assert_eq!(floor.promoted(), Some(RequestId(70)));
        assert_eq!(floor.promote(prompt), None, "it was promoted");
    }

    #[test]
    fn rows_of_the_class_are_its_service() {
        let mut floor = floor();
        for _ in 0..1000 {
            floor.count([4, 6]);
            assert_eq!(floor.promote(|_| (RequestId(70), 10)), None, "it has its share");
        }
    }

    #[test]
    fn nothing_is_earned_while_nothing_waits_and_no_more_than_a_prompt() {
        let mut floor = floor();
        floor.waiting[0].clear();
        floor.count([0, 1000]);
        floor.waiting[0].insert((2, 8));
        assert_eq!(floor.promote(|_| (RequestId(80), 10)), None);
        floor.count([0, 1000]);
        assert_eq!(floor.promote(|_| (RequestId(80), 10)), Some(8));
        assert_eq!(floor.earned[0], 10.0);
    }
}
