//! The arrays of one forward pass, and what its rows of logits are wanted for.

use std::ops::Range;

use l2_model::Batch;

/// A batch in the making. Its buffers are used again in the next step.
#[derive(Default)]
pub(super) struct Step {
    tokens: Vec<u32>,
    positions: Vec<i32>,
    cu_seqlens: Vec<i32>,
    slots: Vec<u32>,
    logit_rows: Vec<u32>,
}

impl Step {
    pub(super) fn clear(&mut self) {
        self.tokens.clear();
        self.positions.clear();
        self.cu_seqlens.clear();
        self.cu_seqlens.push(0);
        self.slots.clear();
        self.logit_rows.clear();
    }

    /// The sequence in `slot` takes part with the tokens at `places` of what `parts`, joined, are. Returns the row of
    /// the batch that its first token is.
    pub(super) fn push(&mut self, slot: u32, parts: [&[u32]; 2], places: Range<usize>) -> usize {
        let first = self.tokens.len();
        let [head, tail] = parts;
        let cut = |place: usize| place.saturating_sub(head.len());
        self.tokens
            .extend_from_slice(&head[places.start.min(head.len())..places.end.min(head.len())]);
        self.tokens.extend_from_slice(&tail[cut(places.start)..cut(places.end)]);
        self.positions.extend(places.start as i32..places.end as i32);
        self.cu_seqlens.push(self.tokens.len() as i32);
        self.slots.push(slot);
        first
    }

    /// The logits after this row of the batch are wanted.
    pub(super) fn want(&mut self, row: usize) {
        self.logit_rows.push(row as u32);
    }

    pub(super) fn batch(&self) -> Batch<'_> {
        Batch {
            tokens: &self.tokens,
            positions: &self.positions,
            cu_seqlens_q: &self.cu_seqlens,
            state_slots: &self.slots,
            logit_rows: &self.logit_rows,
            ..Batch::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_may_begin_in_the_prompt_and_end_in_the_answer() {
        let mut step = Step::default();
        step.clear();
        let parts: [&[u32]; 2] = [&[10, 11, 12], &[20, 21]];
        assert_eq!(step.push(4, parts, 1..4), 0);
        assert_eq!(step.push(2, parts, 4..5), 3);
        assert_eq!(step.push(3, parts, 0..2), 4);
        step.want(2);
        let batch = step.batch();
        assert_eq!(batch.tokens, [11, 12, 20, 21, 10, 11]);
        assert_eq!(batch.positions, [1, 2, 3, 4, 0, 1]);
        assert_eq!(batch.cu_seqlens_q, [0, 3, 4, 6]);
        assert_eq!(batch.state_slots, [4, 2, 3]);
        assert_eq!(batch.logit_rows, [2]);
    }
}
