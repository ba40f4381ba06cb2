//! Turns of adapters.

use super::AdapterTurn;
use crate::{Adapter, RequestView};

/// Gives the adapters turns, in the order of their names, round and round.
///
/// An adapter keeps its turn for at most `max_steps` steps while another one has ready requests. An adapter whose
/// requests are ready therefore waits for at most `max_steps` steps of each other adapter that is ready in the meantime:
/// going round in one order, no adapter is passed twice before it.
///
/// Only the adapter that has or had the last turn is kept, so the memory does not grow with the number of adapters.
#[derive(Clone, Debug, Default)]
pub struct Turns {
    /// Steps of a turn; 0 without turns.
    max_steps: usize,
    /// Adapter of the last step that had one.
    last: Option<Adapter>,
    /// Number of steps of its turn so far.
    steps: usize,
}

impl Turns {
    /// Creates turns of at most `max_steps` steps. 0: no turns, adapters share steps.
    pub fn new(max_steps: usize) -> Self {
        Self { max_steps, ..Self::default() }
    }

    /// The next turn, among the adapters of these requests, which are ready to run. [`AdapterTurn::First`] if no request
    /// has an adapter.
    pub fn next<'a, I: Iterator<Item = RequestView<'a>>>(
        &self,
        ready: impl FnOnce() -> I,
    ) -> AdapterTurn<'a> {
        if self.max_steps == 0 {
            return AdapterTurn::All;
        }
        let last = self.last.as_ref();
        let (mut first, mut after): (Option<&Adapter>, Option<&Adapter>) = (None, None);
        for adapter in ready().filter_map(|request| request.adapter()) {
            if last == Some(adapter) && self.steps < self.max_steps {
                return AdapterTurn::Of(adapter);
            }
            if first.is_none_or(|least| adapter < least) {
                first = Some(adapter);
            }
            if last.is_some_and(|last| adapter > last) && after.is_none_or(|least| adapter < least)
            {
                after = Some(adapter);
            }
        }
        after.or(first).map_or(AdapterTurn::First, AdapterTurn::Of)
    }

    /// A step of this turn was applied.
    pub fn applied(&mut self, turn: AdapterTurn<'_>) {
        let AdapterTurn::Of(adapter) = turn else { return };
        match &mut self.last {
            Some(last) if last == adapter && self.steps < self.max_steps => self.steps += 1,
            last => {
                keep(last, adapter);
                self.steps = 1;
            }
        }
    }
}

/// The turn of the step that is being planned, owned; its memory is reused.
#[derive(Debug, Default)]
pub(crate) struct CurrentTurn {
    /// Whether the step is limited to one adapter.
    limited: bool,
    /// Whether that adapter is known.
    known: bool,
    adapter: Option<Adapter>,
}

impl CurrentTurn {
    pub(crate) fn set(&mut self, turn: AdapterTurn<'_>) {
        self.limited = turn != AdapterTurn::All;
        self.known = false;
        if let AdapterTurn::Of(adapter) = turn {
            keep(&mut self.adapter, adapter);
            self.known = true;
        }
    }

    /// The last resort of a step that had turns: the first request that can run decides.
    pub(crate) fn first(&mut self) {
        self.known = false;
    }

    /// Whether the step is limited to one adapter.
    pub(crate) fn is_limited(&self) -> bool {
        self.limited
    }

    /// Whether a step of this turn may have a row of a request with this adapter.
    pub(crate) fn allows(&self, adapter: Option<&Adapter>) -> bool {
        !self.limited || adapter.is_none() || !self.known || self.adapter.as_ref() == adapter
    }

    /// A request with this adapter gets a row.
    pub(crate) fn note(&mut self, adapter: Option<&Adapter>) {
        if let Some(adapter) = adapter.filter(|_| self.limited && !self.known) {
            keep(&mut self.adapter, adapter);
            self.known = true;
        }
    }

    pub(crate) fn turn(&self) -> AdapterTurn<'_> {
        match &self.adapter {
            _ if !self.limited => AdapterTurn::All,
            Some(adapter) if self.known => AdapterTurn::Of(adapter),
            _ => AdapterTurn::First,
        }
    }
}

/// Stores a copy of `adapter`, without allocating if there is room for it.
fn keep(kept: &mut Option<Adapter>, adapter: &Adapter) {
    match kept {
        Some(kept) => {
            kept.name.clone_from(&adapter.name);
            kept.path.clone_from(&adapter.path);
        }
        None => *kept = Some(adapter.clone()),
    }
}
