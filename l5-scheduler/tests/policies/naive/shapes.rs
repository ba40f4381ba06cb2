//! What the composer allows in a step: rows that decode or prompts, and rows of which adapter.

use l5_scheduler::Compose;

use super::{Naive, NaiveRequest};

/// Rows that a step may have.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Shape {
    Any,
    Decodes,
    /// Rows of prompts, of at most so many tokens together.
    Prompts(usize),
}

/// Adapters that the rows of a step may have: any; that of the first row that has one; this one. A row without an
/// adapter is always allowed.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Turn {
    All,
    First,
    Of(String),
}

impl Naive {
    /// Decides the composition of the step: at first as the configuration says, then as if no request waited, then any rows.
    pub(super) fn compose(&mut self, attempt: usize) {
        let could_sit = |head: &&NaiveRequest| {
            let preemptable =
                |request: &NaiveRequest| self.strict() && request.priority > head.priority;
            self.running.len() < self.seats() || self.running.iter().any(preemptable)
        };
        let head = self.head().filter(|_| attempt == 0).filter(could_sit);
        let (decode, mut prompts): (Vec<_>, Vec<_>) =
            self.running.iter().partition(|request| request.decodes());
        prompts.extend(head);
        let all: Vec<_> = self.running.iter().chain(head).collect();
        let (shape, turn) = match self.config.compose {
            _ if attempt == 2 && self.config.adapter_turn > 0 => (Shape::Any, Turn::First),
            _ if attempt == 2 => (Shape::Any, Turn::All),
            Compose::Mixed => (Shape::Any, self.next_turn(1, &all)),
            Compose::Stable { .. } if decode.is_empty() => {
                (Shape::Any, self.next_turn(1, &prompts))
            }
            Compose::Stable { max_decode_steps, chunk }
                if !prompts.is_empty() && self.decode_steps >= max_decode_steps =>
            {
                let whole = chunk == 0 || !self.config.enable_chunked_prefill;
                let chunk = if whole { usize::MAX } else { chunk };
                (Shape::Prompts(chunk), self.next_turn(1, &prompts))
            }
            Compose::Stable { .. } => (Shape::Decodes, self.next_turn(0, &decode)),
        };
        (self.shape, self.turn) = (shape, turn);
    }

    /// The next adapter of the requests that are ready, in the order of the alphabet.
    fn next_turn(&self, kind: usize, ready: &[&NaiveRequest]) -> Turn {
        if self.config.adapter_turn == 0 {
            return Turn::All;
        }
        let mut names: Vec<&String> = ready.iter().filter_map(|r| r.adapter.as_ref()).collect();
        names.sort();
        let (last, steps) = &self.turns[kind];
        let stays = names.iter().find(|name| **name == last && *steps < self.config.adapter_turn);
        let next = names.iter().find(|name| **name > last);
        let next = stays.or(next).or(names.first());
        next.map_or(Turn::First, |name| Turn::Of((*name).clone()))
    }

    /// Counts the step that is planned.
    pub(super) fn count(&mut self) {
        let decodes = self.shape == Shape::Decodes;
        self.decode_steps = if decodes { self.decode_steps + 1 } else { 0 };
        if let Turn::Of(name) = &self.turn {
            let (last, steps) = &mut self.turns[usize::from(!decodes)];
            let goes_on = last == name && *steps < self.config.adapter_turn;
            *steps = if goes_on { *steps + 1 } else { 1 };
            last.clone_from(name);
        }
    }

    pub(super) fn in_turn(&self, request: &NaiveRequest) -> bool {
        match (&self.turn, &request.adapter) {
            (Turn::Of(name), Some(own)) => name == own,
            _ => true,
        }
    }
}
