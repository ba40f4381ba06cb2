//! Prompts beside rows that decode.

use super::{Applied, Composer, Composition, Demand, StepShape, Turns};

/// Every step takes rows that decode and chunks of prompts, as in vLLM: no request waits while tokens of the step are
/// left. Without adapter turns it decides nothing.
#[derive(Clone, Debug, Default)]
pub struct Mixed {
    turns: Turns,
}

impl Mixed {
    /// Creates the composer. `adapter_turn` is as in [`Turns::new`].
    pub fn new(adapter_turn: usize) -> Self {
        Self { turns: Turns::new(adapter_turn) }
    }
}

impl Composer for Mixed {
    fn name(&self) -> &'static str {
        "mixed"
    }

    fn begin<'a>(&self, demand: &Demand<'a>) -> Composition<'a> {
        let turn = self.turns.next(|| demand.running().chain(demand.head()));
        Composition { shape: StepShape::Mixed, turn }
    }

    fn applied(&mut self, applied: &Applied<'_>) {
        self.turns.applied(applied.turn);
    }
}
