//! The memory: keys and values of every layer, in blocks.

pub struct PagedKv { /* layers: Vec<Option<KvCache>> */ }

impl PagedKv {
    /// `dtype`: F32, BF16 or F8E4M3.
    pub fn new(config: &ModelConfig, num_blocks: usize, block_size: usize, dtype: DType) -> Result<Self>;
    pub fn num_blocks(&self) -> usize; pub fn block_size(&self) -> usize; pub fn dtype(&self) -> DType; pub fn bytes(&self) -> usize;
    pub fn layer(&self, layer: usize) -> Option<&KvCache>;
    /// Write this step's K,V through slot_mapping, then attend through the block table. `q` [T, H_q, D], `k`, `v` [T, H_kv, D] f32 after rope.
    pub fn attend(&mut self, rt: &Runtime, layer: usize, meta: &ForwardMeta, q: TensorRef, k: TensorRef, v: TensorRef, params: AttentionParams, scratch: &mut AttentionScratch, out: TensorMut) -> Result<()>;
    pub fn copy(&mut self, copy: CopyBlock) -> Result<()>;
    /// Forget what lies in a block from `offset` on (after a rollback).
    pub fn clear(&mut self, block: BlockId, offset: usize) -> Result<()>;
}
