//! What one forward pass must know about a mixed batch (DESIGN seam 6).

/// Buffers made once; addresses never change.
pub struct ForwardMeta { /* positions: Vec<i32>, cu_seqlens_q: Vec<i32>, seq_lens_kv: Vec<i32>, block_table: Vec<i32> (row stride max_blocks, -1 padded), slot_mapping: Vec<i64>, block_size, max_blocks */ }

impl ForwardMeta {
    pub fn new(max_tokens: usize, max_seqs: usize, max_blocks: usize, block_size: usize) -> Self;
    pub fn clear(&mut self);
    /// A sequence of which `computed` tokens are stored takes part with `q_len` more: kv_len = computed + q_len.
    pub fn push(&mut self, table: &BlockTable, computed: usize, q_len: usize) -> Result<()>;
    /// Fill up to `rows` sequences with padding: q_len 1, kv_len 0, position 0, slot -1, table -1.
    pub fn pad_to(&mut self, rows: usize) -> Result<()>;
    pub fn sequences(&self) -> usize; pub fn tokens(&self) -> usize; pub fn block_size(&self) -> usize; pub fn max_blocks(&self) -> usize;
    pub fn positions(&self) -> &[i32]; pub fn cu_seqlens_q(&self) -> &[i32]; pub fn seq_lens_kv(&self) -> &[i32]; pub fn slot_mapping(&self) -> &[i64];
    /// `[S, max_blocks]`
    pub fn block_table(&self) -> &[i32];
    pub fn block_table_row(&self, s: usize) -> &[i32];
}
