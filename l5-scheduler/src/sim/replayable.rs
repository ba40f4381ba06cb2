//! Counter of the steps that a device could replay.

use serde::Serialize;

use crate::StepPlan;

/// Steps that a device would replay which has captured decode steps of some widths: all rows decode, and there is a
/// captured width that holds them, to which the step is padded. The others are launched kernel by kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ReplayableSteps {
    /// Largest captured width; 0 without any.
    pub widest: usize,
    /// Number of steps that would be replayed.
    pub replayable: u64,
    /// Number of steps with rows.
    pub executed: u64,
}

impl ReplayableSteps {
    /// Creates a counter for these captured widths.
    pub fn new(decode_widths: &[usize]) -> Self {
        Self { widest: decode_widths.iter().copied().max().unwrap_or(0), ..Self::default() }
    }

    /// Counts a planned step, if it has rows.
    pub fn note(&mut self, step: &StepPlan) {
        self.executed += u64::from(!step.rows.is_empty());
        let replayable = step.decode_width().is_some_and(|rows| rows <= self.widest);
        self.replayable += u64::from(replayable);
    }

    /// Replayable steps as a fraction of the steps with rows; 0 without steps.
    pub fn rate(&self) -> f64 {
        if self.executed > 0 { self.replayable as f64 / self.executed as f64 } else { 0.0 }
    }
}
