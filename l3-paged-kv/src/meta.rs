//! Metadata of one forward pass over a mixed batch.
//!
//! A step carries tokens of some sequences: a chunk of a prompt here, one decoded token there. The
//! kernels want them as flat arrays of numbers:
//!
//! ```text
//! positions    [T]     i32  position of each token in its sequence
//! slot_mapping [T]     i64  slot in which its key and value are stored; -1: not stored
//! cu_seqlens_q [S + 1] i32  tokens cu[s]..cu[s + 1] belong to sequence s
//! seq_lens_kv  [S]     i32  number of keys of each sequence, those of this step included
//! block_table  [S, W]  i32  blocks of each sequence; -1: no block
//! ```
//!
//! Query `i` of a sequence sees keys `0..=(kv_len - q_len + i)`. Nothing says whether a sequence is
//! in prefill or in decode: it has `q_len` new tokens behind `computed` old ones, and decode is
//! `q_len == 1`.
//!
//! The arrays are made once, for the largest step there will be, and refilled in place: a captured
//! GPU graph reads the same addresses in every step, and a steady step allocates nothing. What must
//! not happen then is that a short step reads what a longer one left behind. (vLLM's
//! `CommonAttentionMetadata` is the model for these fields.)

mod device;

pub use device::MetaOnDevice;

use crate::{BlockTable, KvError, Result};

/// Entry of a block table where there is no block, and of a slot mapping for a token that is not stored.
const NONE: i32 = -1;

/// The arrays of one step. Buffers are allocated by [`ForwardMeta::new`] and never move.
#[derive(Clone, Debug)]
pub struct ForwardMeta {
    positions: Vec<i32>,
    slot_mapping: Vec<i64>,
    cu_seqlens_q: Vec<i32>,
    seq_lens_kv: Vec<i32>,
    /// `[max_seqs, max_blocks]`, at its full size from the start.
    block_table: Vec<i32>,
    /// Number of entries of each row of the table that were written; behind them all entries are -1.
    row_lens: Vec<usize>,
    max_tokens: usize,
    max_blocks: usize,
    block_size: usize,
    captured_queries: usize,
}

impl ForwardMeta {
    /// Creates arrays for steps of at most `max_tokens` tokens and `max_seqs` sequences, padding included, whose tables
    /// have at most `max_blocks` blocks of `block_size` tokens.
    pub fn new(max_tokens: usize, max_seqs: usize, max_blocks: usize, block_size: usize) -> Self {
        let mut cu_seqlens_q = Vec::with_capacity(max_seqs + 1);
        cu_seqlens_q.push(0);
        Self {
            positions: Vec::with_capacity(max_tokens),
            slot_mapping: Vec::with_capacity(max_tokens),
            cu_seqlens_q,
            seq_lens_kv: Vec::with_capacity(max_seqs),
            block_table: vec![NONE; max_seqs * max_blocks],
            row_lens: vec![0; max_seqs],
            max_tokens,
            max_blocks,
            block_size: block_size.max(1),
            captured_queries: 1,
        }
    }

    /// Sets the maximum number of tokens that a sequence has in a captured step: 1 + drafts; 1 if this is not called.
    /// The launches of a captured step are for this number.
    #[must_use]
    pub fn with_captured_queries(self, captured_queries: usize) -> Self {
        Self { captured_queries: captured_queries.max(1), ..self }
    }

    /// Begins another step. Costs nothing: rows are cleaned when they are written again.
    pub fn clear(&mut self) {
        self.positions.clear();
        self.slot_mapping.clear();
        self.cu_seqlens_q.truncate(1);
        self.seq_lens_kv.clear();
    }

    /// Adds a sequence that has `computed` stored tokens and `q_len` new ones.
    ///
    /// The table must have a block for each of the `computed + q_len` tokens; further blocks
    /// (reserved for later steps) are ignored.
    ///
    /// # Errors
    /// [`KvError::Malformed`] for a table of another block size or with too few blocks, or a step
    /// that is larger than the arrays. Then the step is as it was before.
    pub fn push(&mut self, table: &BlockTable, computed: usize, q_len: usize) -> Result<()> {
        let kv_len = self.check(table, computed, q_len)?;
        // exercise l3.meta
        let s = self.sequences();
        self.positions.extend((computed..kv_len).map(|p| p as i32));
        self.slot_mapping.extend((computed..kv_len).filter_map(|p| table.slot(p)));
        self.cu_seqlens_q.push(self.positions.len() as i32);
        self.seq_lens_kv.push(kv_len as i32);
        self.fill_row(s, &table.blocks()[..kv_len.div_ceil(self.block_size)]);
        Ok(())
        // end of exercise
    }

    /// Pads the step to `rows` sequences: one token each that is not stored and sees no key, so its row of
    /// the output is zeros. The shape of the step then does not depend on the number of requests.
    ///
    /// # Errors
    /// [`KvError::Malformed`] when the arrays have no such room.
    pub fn pad_to(&mut self, rows: usize) -> Result<()> {
        let missing = rows.saturating_sub(self.sequences());
        self.check_room(missing, missing)?;
        // exercise l3.meta
        for s in self.sequences()..rows {
            self.positions.push(0);
            self.slot_mapping.push(i64::from(NONE));
            self.cu_seqlens_q.push(self.positions.len() as i32);
            self.seq_lens_kv.push(0);
            self.fill_row(s, &[]);
        }
        Ok(())
        // end of exercise
    }

    /// Pads the step to `width` tokens, as [`ForwardMeta::pad_to`] does, and then to as many sequences: those behind
    /// the padding rows have neither tokens nor keys. So a step in which sequences have several tokens gets the shape
    /// of one in which each has one.
    ///
    /// # Errors
    /// [`KvError::Malformed`] when the arrays have no such room.
    pub fn pad_to_width(&mut self, width: usize) -> Result<()> {
        let rows = self.sequences() + width.saturating_sub(self.tokens());
        self.check_room(
            width.saturating_sub(self.sequences()),
            width.saturating_sub(self.tokens()),
        )?;
        self.pad_to(rows)?;
        for s in rows..width {
            self.cu_seqlens_q.push(self.positions.len() as i32);
            self.seq_lens_kv.push(0);
            self.fill_row(s, &[]);
        }
        Ok(())
    }

    /// Writes a row of the table. Entries behind it that an earlier, longer row wrote become -1; each entry is cleared
    /// at most once for each time that it was written.
    fn fill_row(&mut self, s: usize, blocks: &[u32]) {
        // exercise l3.meta
        let row = &mut self.block_table[s * self.max_blocks..][..self.max_blocks];
        let stale = std::mem::replace(&mut self.row_lens[s], blocks.len());
        for (entry, block) in row.iter_mut().zip(blocks) {
            *entry = *block as i32;
        }
        if stale > blocks.len() {
            row[blocks.len()..stale].fill(NONE);
        }
        // end of exercise
    }

    /// Number of keys of the sequence after this step, if everything fits.
    fn check(&self, table: &BlockTable, computed: usize, q_len: usize) -> Result<usize> {
        let refuse = |why| Err(KvError::Malformed(why));
        self.check_room(1, q_len)?;
        if table.block_size() != self.block_size {
            let (theirs, ours) = (table.block_size(), self.block_size);
            return refuse(format!("a table of blocks of {theirs} tokens in a step of {ours}"));
        }
        let longest = self.max_blocks.saturating_mul(self.block_size).min(i32::MAX as usize);
        let kv_len = computed.saturating_add(q_len);
        if kv_len > longest {
            return refuse(format!(
                "a sequence of {kv_len} tokens, but tables of this step end at {longest}"
            ));
        }
        let (blocks, needed) = (table.blocks().len(), kv_len.div_ceil(self.block_size));
        if blocks < needed {
            return refuse(format!(
                "{kv_len} tokens need {needed} blocks, but the table has {blocks}: reserve first"
            ));
        }
        Ok(kv_len)
    }

    fn check_room(&self, sequences: usize, tokens: usize) -> Result<()> {
        let (most, now) = (self.row_lens.len(), self.sequences());
        if sequences > most - now {
            let why = format!("{sequences} sequences beside {now}, but a step holds {most}");
            return Err(KvError::Malformed(why));
        }
        let (most, now) = (self.max_tokens, self.tokens());
        if tokens > most - now {
            let why = format!("{tokens} tokens beside {now}, but a step holds {most}");
            return Err(KvError::Malformed(why));
        }
        Ok(())
    }

    /// Number of sequences of this step, padding included: S.
    pub fn sequences(&self) -> usize {
        self.seq_lens_kv.len()
    }

    /// Number of tokens of this step, padding included: T.
    pub fn tokens(&self) -> usize {
        self.positions.len()
    }

    /// Number of tokens per block.
    pub fn block_size(&self) -> usize {
        self.block_size
    }

    /// Maximum number of tokens of a sequence in a captured step.
    pub fn captured_queries(&self) -> usize {
        self.captured_queries
    }

    /// Number of entries of a row of the table, used or not: W.
    pub fn max_blocks(&self) -> usize {
        self.max_blocks
    }

    /// `[T]`: position of each token in its sequence.
    pub fn positions(&self) -> &[i32] {
        &self.positions
    }

    /// `[T]`: slot of each token's key and value, `block * block_size + offset`; -1 for padding.
    pub fn slot_mapping(&self) -> &[i64] {
        &self.slot_mapping
    }

    /// `[S + 1]`: index of each sequence's first token; the last entry is T.
    pub fn cu_seqlens_q(&self) -> &[i32] {
        &self.cu_seqlens_q
    }

    /// `[S]`: number of keys of each sequence after this step; 0 for padding.
    pub fn seq_lens_kv(&self) -> &[i32] {
        &self.seq_lens_kv
    }

    /// `[S, W]`: blocks of each sequence, padded with -1.
    pub fn block_table(&self) -> &[i32] {
        &self.block_table[..self.sequences() * self.max_blocks]
    }

    /// `[W]`: row `s` of the block table; empty if the step has no such sequence.
    pub fn block_table_row(&self, s: usize) -> &[i32] {
        let rows = self.block_table();
        rows.get(s * self.max_blocks..(s + 1) * self.max_blocks).unwrap_or(&[])
    }
}
