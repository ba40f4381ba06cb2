//! One forward pass for everybody who takes part in a step.
//!
//! ```text
//! who      a chunk of 5    a decode    a prompt of 3
//! tokens   a a a a a       b           c c c          nothing between them, nothing behind them
//! logits           4       5               8          of the last token of those who sample
//! ```
//!
//! Sequences lie behind each other, each as long as it is, so no token is padding. Only where a device has a decode step of
//! a certain width captured, a step that only decodes is filled up to it with rows that see nothing and store nothing.

use l2_model::Batch;
use l3_paged_kv::{ForwardMeta, KvError};

use crate::StepView;

/// The arrays of a forward pass that are not in its [`ForwardMeta`]: tokens, and the rows whose logits are wanted. Memory
/// is used again.
#[derive(Clone, Debug, Default)]
pub struct Packed {
    tokens: Vec<u32>,
    slots: Vec<u32>,
    logit_rows: Vec<u32>,
}

impl Packed {
    /// Arrays with room for steps of so many tokens and sequences.
    pub fn with_capacity(max_tokens: usize, max_seqs: usize) -> Self {
        Self {
            tokens: Vec::with_capacity(max_tokens),
            slots: Vec::with_capacity(max_seqs),
            logit_rows: Vec::with_capacity(max_seqs),
        }
    }

    /// Write a step's arrays, into `meta` too. A row that samples has its last token's logits wanted, the others none: what
    /// would be chosen in the middle of a prompt is in the prompt already. `widths`: numbers of rows, rising, to which a
    /// step is filled up if every sequence has one token.
    ///
    /// # Errors
    /// [`KvError::Malformed`] for a step that is larger than the arrays.
    pub fn pack(
        &mut self,
        step: &StepView<'_>,
        meta: &mut ForwardMeta,
        widths: &[usize],
    ) -> Result<(), KvError> {
        self.tokens.clear();
        self.slots.clear();
        self.logit_rows.clear();
        meta.clear();
        // exercise l5.pack
        for row in step.rows() {
            meta.push(row.table, row.row.computed, row.row.len)?;
            self.tokens.extend_from_slice(row.tokens);
            if row.row.samples {
                self.logit_rows.push(self.tokens.len() as u32 - 1);
            }
        }
        let rows = meta.sequences();
        let only_decodes = meta.tokens() == rows;
        if let Some(width) = widths.iter().find(|width| only_decodes && **width >= rows) {
            meta.pad_to(*width)?;
            self.tokens.resize(*width, 0);
        }
        self.slots.extend(0..meta.sequences() as u32);
        Ok(())
        // end of exercise
    }

    /// The step's tokens, sequence after sequence, padding included.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// The tokens whose logits are wanted, by their number in the step: one for each row that samples, in their order.
    pub fn logit_rows(&self) -> &[u32] {
        &self.logit_rows
    }

    /// Whether every sequence has one token and wants its logits, filler aside: then the step differs from others of its
    /// width by numbers only. `rows`: sequences that are not filler.
    pub(super) fn only_decodes(&self, meta: &ForwardMeta, rows: usize) -> bool {
        meta.tokens() == meta.sequences() && self.logit_rows.len() == rows
    }

    /// Let the logits of filler be wanted too: nobody looks at them, and a step of this width has one shape whoever takes
    /// part.
    pub(super) fn want_all(&mut self) {
        self.logit_rows.clear();
        self.logit_rows.extend(0..self.tokens.len() as u32);
    }

    /// A step of filler alone, to be captured.
    ///
    /// # Errors
    /// [`KvError::Malformed`] for a step that is larger than the arrays.
    pub(super) fn fill(&mut self, meta: &mut ForwardMeta, width: usize) -> Result<(), KvError> {
        meta.clear();
        meta.pad_to(width)?;
        self.tokens.clear();
        self.tokens.resize(width, 0);
        self.slots.clear();
        self.slots.extend(0..width as u32);
        self.want_all();
        Ok(())
    }

    /// Feed something else in the place of tokens that the model does not have. Their request has failed, and nobody else
    /// will find the blocks that are computed of them: the blocks' hashes are those of the tokens that were asked for.
    pub(super) fn feed_known(&mut self, vocab: usize) {
        for token in self.tokens.iter_mut().filter(|token| **token as usize >= vocab) {
            *token = 0;
        }
    }

    /// As the model wants to see it.
    pub fn batch<'a>(&'a self, meta: &'a ForwardMeta) -> Batch<'a> {
        Batch {
            tokens: &self.tokens,
            positions: meta.positions(),
            cu_seqlens_q: meta.cu_seqlens_q(),
            state_slots: &self.slots,
            logit_rows: &self.logit_rows,
            ..Batch::default()
        }
    }
}
