//! Arrays of a drafter's batch, filled sequence by sequence. The memory is reused.

use l2_model::Batch;

/// The arrays of a [`Batch`].
#[derive(Debug, Default)]
pub(super) struct BatchArrays {
    tokens: Vec<u32>,
    positions: Vec<i32>,
    ends: Vec<i32>,
    seqs: Vec<u32>,
    logit_rows: Vec<u32>,
}

impl BatchArrays {
    /// Creates arrays with room for so many tokens of so many sequences.
    pub(super) fn with_capacity(tokens: usize, seqs: usize) -> Self {
        Self {
            tokens: Vec::with_capacity(tokens),
            positions: Vec::with_capacity(tokens),
            ends: Vec::with_capacity(seqs + 1),
            seqs: Vec::with_capacity(seqs),
            logit_rows: Vec::with_capacity(seqs),
        }
    }

    /// Removes all sequences.
    pub(super) fn clear(&mut self) {
        self.tokens.clear();
        self.positions.clear();
        self.ends.clear();
        self.ends.push(0);
        self.seqs.clear();
        self.logit_rows.clear();
    }

    /// Adds tokens of a sequence, the first one at position `at`. `wants_logits`: of the last one.
    pub(super) fn add(
        &mut self,
        seq: u32,
        at: usize,
        tokens: impl IntoIterator<Item = u32>,
        wants_logits: bool,
    ) {
        let first = self.tokens.len();
        self.tokens.extend(tokens);
        let end = self.tokens.len();
        self.positions.extend((at..at + end - first).map(|at| at as i32));
        self.ends.push(end as i32);
        self.seqs.push(seq);
        if wants_logits {
            self.logit_rows.push(end as u32 - 1);
        }
    }

    /// Number of tokens of all sequences.
    pub(super) fn num_tokens(&self) -> usize {
        self.tokens.len()
    }

    /// Whether the logits of any token are computed.
    pub(super) fn wants_logits(&self) -> bool {
        !self.logit_rows.is_empty()
    }

    /// Sequences, in their order.
    pub(super) fn seqs(&self) -> &[u32] {
        &self.seqs
    }

    /// Sequences, each with its tokens.
    pub(super) fn sequences(&self) -> impl Iterator<Item = (u32, &[u32])> + '_ {
        let tokens = |span: &[i32]| &self.tokens[span[0] as usize..span[1] as usize];
        self.seqs.iter().copied().zip(self.ends.windows(2).map(tokens))
    }

    /// The batch.
    pub(super) fn batch(&self) -> Batch<'_> {
        Batch {
            tokens: &self.tokens,
            positions: &self.positions,
            cu_seqlens_q: &self.ends,
            state_slots: &self.seqs,
            logit_rows: &self.logit_rows,
            ..Batch::default()
        }
    }
}
