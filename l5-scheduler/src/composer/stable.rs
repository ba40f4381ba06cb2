//! Steps that decode only, with a step of prompts between them.

use super::{Applied, Composer, Composition, Demand, StepShape, Turns};

/// Keeps the shape of most steps stable: while requests decode, a step either decodes only or computes prompts only.
/// After `max_decode_steps` steps that only decode, the prompts that wait have one step; then it begins again.
///
/// * **Replay.** Of the steps in which a request decodes or could decode, at least `max_decode_steps` of
///   `max_decode_steps + 1` decode only.
/// * **Prompts.** While the prompt of a running request is not computed to the end, or a waiting request could be
///   admitted, at most `max_decode_steps` steps in a row compute no tokens of prompts. Usually fewer: steps that decoded
///   before the prompt came count.
/// * **Decodes.** A request that decodes is without a token for one step at most: a step of prompts is followed by a
///   step that decodes. If no request decodes, prompts have every step, with all of its tokens.
///
/// With adapter turns, steps that decode and steps of prompts have a rotation each, and both bounds are multiplied by
/// the steps of a full round ([`Turns`]).
///
/// The price is time to first token, and throughput if `chunk` tokens in `max_decode_steps + 1` steps are fewer than
/// those of the prompts that arrive: then requests wait until so few are left that decode that the seats run empty.
#[derive(Clone, Debug)]
pub struct Stable {
    max_decode_steps: usize,
    chunk: usize,
    /// Number of steps that only decoded since the last one that took prompts.
    decode_steps: usize,
    decode_turns: Turns,
    prefill_turns: Turns,
}

impl Stable {
    /// Creates the composer, with at least one step that decodes between two steps of prompts. `adapter_turn` is as in
    /// [`Turns::new`].
    pub fn new(max_decode_steps: usize, chunk: usize, adapter_turn: usize) -> Self {
        Self {
            max_decode_steps: max_decode_steps.max(1),
            chunk,
            decode_steps: 0,
            decode_turns: Turns::new(adapter_turn),
            prefill_turns: Turns::new(adapter_turn),
        }
    }

    /// Shape of the next step: `decoding` says whether a running request decodes, `prompts` whether tokens of a prompt
    /// could be computed.
    pub(super) fn shape(&self, decoding: bool, prompts: bool) -> StepShape {
        // exercise l5.compose
        match (decoding, prompts) {
            (true, true) if self.decode_steps >= self.max_decode_steps => {
                StepShape::Prefill { chunk: self.chunk }
            }
            (true, _) => StepShape::DecodeOnly,
            // No request loses a step by it.
            (false, _) => StepShape::Mixed,
        }
        // end of exercise
    }

    /// Counts a step of this shape, which was applied.
    pub(super) fn count(&mut self, shape: StepShape) {
        // exercise l5.compose
        self.decode_steps = match shape {
            StepShape::DecodeOnly => self.decode_steps.saturating_add(1),
            StepShape::Prefill { .. } | StepShape::Mixed => 0,
        };
        // end of exercise
    }
}

impl Composer for Stable {
    fn name(&self) -> &'static str {
        "stable"
    }

    fn begin<'a>(&self, demand: &Demand<'a>) -> Composition<'a> {
        let prompts = || demand.prefilling().chain(demand.head());
        let decoding = demand.decoding().next().is_some();
        let shape = self.shape(decoding, prompts().next().is_some());
        let turn = match shape {
            StepShape::DecodeOnly => self.decode_turns.next(|| demand.decoding()),
            StepShape::Prefill { .. } | StepShape::Mixed => self.prefill_turns.next(prompts),
        };
        Composition { shape, turn }
    }

    fn applied(&mut self, applied: &Applied<'_>) {
        self.count(applied.step.shape);
        match applied.step.shape {
            StepShape::DecodeOnly => self.decode_turns.applied(applied.turn),
            StepShape::Prefill { .. } | StepShape::Mixed => {
                self.prefill_turns.applied(applied.turn)
            }
        }
    }
}
