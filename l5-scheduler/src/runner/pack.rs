//! Packs all rows of a step for one forward pass.
//!
//! ```text
//! rows     a chunk of 5    a decode    a prompt of 3    a decode with 2 drafts
//! tokens   a a a a a       b           c c c            d d d      no padding between or behind them
//! logits           4       5               8            9 10 11    of the last token of each row that samples, and of
//!                                                                  each draft
//! ```
//!
//! Sequences follow each other at their own lengths, so no token is padding. The exception is a step that only decodes,
//! on a device with captured decode steps: it is padded to the next captured width with rows that read no keys and
//! values and store none, and that sit on free seats.
//!
//! Drafts do not leave the captured shapes. Where all rows decode, a step with drafts has the shape of a decode step
//! of as many rows as it has tokens: sequences of a token and its drafts, then padding, then sequences without tokens.
//! The launches of captured steps are for sequences of up to 1 + drafts tokens, so the keys of a request are read once
//! for as many of its tokens as attention takes together, and not once for each.
//!
//! A step in which a row has an adapter has no padding: its side terms are launched for the rows that it has, so it is
//! not replayed.

use l2_model::Batch;
use l3_paged_kv::{ForwardMeta, KvError};

use crate::{StepRow, StepView};

/// The arrays of a forward pass that are not in its [`ForwardMeta`]: tokens, and the rows whose logits are computed.
/// The memory is reused.
#[derive(Clone, Debug, Default)]
pub struct Packed {
    tokens: Vec<u32>,
    slots: Vec<u32>,
    logit_rows: Vec<u32>,
    /// Index of the adapter of each row; empty if no row has one.
    adapters: Vec<i32>,
}

impl Packed {
    /// Creates arrays for steps of at most `max_tokens` tokens, `max_seqs` sequences and `max_rows` rows of logits.
    pub fn with_capacity(max_tokens: usize, max_seqs: usize, max_rows: usize) -> Self {
        Self {
            tokens: Vec::with_capacity(max_tokens),
            slots: Vec::with_capacity(max_seqs),
            logit_rows: Vec::with_capacity(max_rows),
            adapters: Vec::with_capacity(max_seqs),
        }
    }

    /// Writes a step's arrays, those of `meta` too. For a row that samples, the logits of its last token are computed,
    /// and of each draft behind it; a row that ends within a prompt needs none, because the next token is known.
    /// `widths`: row counts, ascending, to which a step is padded if every sequence has one token.
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
            self.tokens.extend_from_slice(row.drafts);
            self.slots.push(row.row.seat.index);
            if row.row.samples {
                let end = self.tokens.len() as u32;
                self.logit_rows.extend(end - 1 - row.drafts.len() as u32..end);
            }
        }
        let rows = meta.sequences();
        let only_decodes = meta.tokens() == rows;
        // A padding row has a seat too, since the model may keep something for each; no running request may have it.
        let free = step.free_seats();
        let most = if only_decodes { rows + free.len() } else { 0 };
        if let Some(width) = widths.iter().find(|width| (rows..=most).contains(width)) {
            meta.pad_to(*width)?;
            self.tokens.resize(*width, 0);
            self.slots.extend(free.take(*width - rows));
        }
        Ok(())
        // end of exercise
    }

    /// Writes a step in which all rows decode as one of a captured width: as many sequences as tokens, of which the
    /// last have no token. The logits of all tokens are computed. Returns whether there is such a width, and writes
    /// nothing if there is none, or if a row has more tokens than captured steps are for. `widths`: row counts,
    /// ascending; `max_seqs`: maximum number of seats.
    ///
    /// # Errors
    /// [`KvError::Malformed`] for a step that is larger than the arrays.
    pub fn pack_decodes(
        &mut self,
        step: &StepView<'_>,
        meta: &mut ForwardMeta,
        widths: &[usize],
        max_seqs: usize,
    ) -> Result<bool, KvError> {
        let Some(rows) = step.step().decode_width() else { return Ok(false) };
        let width = widths.iter().copied().find(|width| *width >= rows);
        let Some(width) = width else { return Ok(false) };
        let most = meta.captured_queries();
        if step.rows().any(|row| row.row.len > most) {
            return Ok(false);
        }
        self.tokens.clear();
        self.slots.clear();
        self.logit_rows.clear();
        meta.clear();
        for row in step.rows() {
            let StepRow { seat, computed, len, .. } = *row.row;
            meta.push(row.table, computed, len)?;
            self.tokens.extend(row.tokens.iter().chain(row.drafts));
            self.slots.push(seat.index);
        }
        self.logit_rows.extend(0..rows as u32);
        meta.pad_to_width(width)?;
        self.tokens.resize(width, 0);
        // Seats that no request can have.
        self.slots.extend((max_seqs as u32..).take(width - self.slots.len()));
        Ok(true)
    }

    /// Sets the indices of the rows' adapters, in the order of rows: see [`Batch::adapters`]. -1: the row has none. Call
    /// it before the step is packed, which may add padding: padding has no adapter.
    pub(super) fn set_adapters(&mut self, adapters: impl Iterator<Item = i32>) {
        self.adapters.clear();
        self.adapters.extend(adapters);
        if self.adapters.iter().all(|index| *index < 0) {
            self.adapters.clear();
        }
    }

    /// Whether a row has an adapter.
    pub(super) fn has_adapters(&self) -> bool {
        !self.adapters.is_empty()
    }

    /// The step's tokens, sequence after sequence, padding included.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Indices in the step of the tokens whose logits are computed: [`StepRow::logit_rows`](crate::StepRow::logit_rows)
    /// for each row, in the order of rows.
    pub fn logit_rows(&self) -> &[u32] {
        &self.logit_rows
    }

    /// Whether there are as many sequences as tokens, and the logits of all tokens but the padding are computed: then
    /// the step has the same shapes as any other of its width. `rows`: number of tokens without padding.
    pub(super) fn only_decodes(&self, meta: &ForwardMeta, rows: usize) -> bool {
        meta.tokens() == meta.sequences() && self.logit_rows.len() == rows
    }

    /// Computes the logits of padding rows too. They are not read, but all steps of one width then have the same
    /// shapes.
    pub(super) fn want_all(&mut self) {
        self.logit_rows.clear();
        self.logit_rows.extend(0..self.tokens.len() as u32);
    }

    /// Writes a step of padding rows only, for capture.
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
        self.adapters.clear();
        self.want_all();
        Ok(())
    }

    /// Feeds token 0 instead of tokens that the model does not have. Their request has failed. No other request hits
    /// the blocks that are computed from them, because the hashes of those blocks are of the tokens in the request.
    pub(super) fn feed_known(&mut self, vocab: usize) {
        for token in self.tokens.iter_mut().filter(|token| **token as usize >= vocab) {
            *token = 0;
        }
    }

    /// The step as the model's [`Batch`].
    pub fn batch<'a>(&'a self, meta: &'a ForwardMeta) -> Batch<'a> {
        Batch {
            tokens: &self.tokens,
            positions: meta.positions(),
            cu_seqlens_q: meta.cu_seqlens_q(),
            state_slots: &self.slots,
            adapters: &self.adapters,
            logit_rows: &self.logit_rows,
            ..Batch::default()
        }
    }
}
