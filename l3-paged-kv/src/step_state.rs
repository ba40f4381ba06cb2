//! l2's [`SequenceState`] for one step that a scheduler has planned.
//!
//! A scheduler decides which blocks each sequence has and fills a [`ForwardMeta`]; the memory is a [`PagedKv`].
//! [`StepState`] joins the two for the decoder: it writes and attends, and decides nothing.

use l1_tensor::ops::{AttentionParams, AttentionScratch};
use l1_tensor::{Runtime, TensorMut, TensorRef};
use l2_model::{Batch, BatchError, SequenceState, Snapshot};

use crate::{ForwardMeta, PagedKv};

/// Sequence state of one step: the KV cache, and the metadata of the step. The scheduler owns lengths and blocks,
/// so `begin` and `commit` do nothing here.
pub struct StepState<'a> {
    /// KV cache.
    pub kv: &'a mut PagedKv,
    /// Metadata of the step.
    pub meta: &'a ForwardMeta,
    /// Whether this is a step of a captured width: on a device its launches are then the same for all contexts.
    pub captured: bool,
}

/// Error of an operation that only the scheduler may perform.
fn not_here<T>(what: &str) -> l2_model::Result<T> {
    let why = format!("a step's state cannot {what}: its blocks are the scheduler's");
    Err(BatchError::Malformed(why).into())
}

impl SequenceState for StepState<'_> {
    fn begin(&mut self, batch: &Batch) -> l2_model::Result<()> {
        let packed = (self.meta.sequences(), self.meta.tokens());
        if packed == (batch.sequences(), batch.tokens.len()) {
            return Ok(());
        }
        let (s, t) = packed;
        let why = format!("a batch of another shape than the step's {s} sequences and {t} tokens");
        Err(BatchError::Malformed(why).into())
    }

    fn stage(&mut self, rt: &Runtime, _batch: &Batch) -> l2_model::Result<()> {
        Ok(self.kv.stage(rt, self.meta, self.captured)?)
    }

    fn attend(
        &mut self,
        rt: &Runtime,
        layer: usize,
        _batch: &Batch,
        q: TensorRef,
        k: TensorRef,
        v: TensorRef,
        params: AttentionParams,
        scratch: &mut AttentionScratch,
        out: TensorMut,
    ) -> l2_model::Result<()> {
        Ok(self.kv.attend(rt, layer, self.meta, q, k, v, params, scratch, out)?)
    }

    fn commit(&mut self, _batch: &Batch) {}

    /// Keys of a sequence when this step is over.
    fn len(&self, slot: u32) -> usize {
        self.meta.seq_lens_kv().get(slot as usize).map_or(0, |len| *len as usize)
    }

    fn snapshot(&self, _slot: u32) -> l2_model::Result<Snapshot> {
        not_here("take snapshots")
    }

    fn restore(&mut self, _slot: u32, _snapshot: &Snapshot) -> l2_model::Result<()> {
        not_here("be put back")
    }

    fn rollback(&mut self, _slot: u32, _len: usize) -> l2_model::Result<()> {
        not_here("be cut back")
    }

    fn drop_sequence(&mut self, _slot: u32) {}

    fn bytes(&self, slot: u32) -> usize {
        self.len(slot).div_ceil(self.kv.block_size()) * self.kv.block_bytes()
    }
}
