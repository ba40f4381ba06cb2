//! A step's metadata in the memory of a device.
//!
//! The kernels of a step want slots, lengths and tables in the device's memory, at the addresses of the step
//! before: a recorded step is replayed with whatever was brought there last. All of it travels in one copy.
//!
//! Beside the numbers, kernels are launched with a *geometry*: how many queries and keys the longest sequence
//! has, which says how many blocks of threads there are. A recorded step will be replayed when sequences have
//! grown, so its geometry is that of the longest there can be, and threads that find nothing to do end.

use l1_tensor::ops::DeviceSequences;
use l1_tensor::{DType, Index, Runtime, Staging};

use super::ForwardMeta;
use crate::{KvError, Result};

// Longest last: a copy ends where the last array ends that was written.
const CU_SEQLENS_Q: usize = 0;
const SEQ_LENS_KV: usize = 1;
const SLOT_MAPPING: usize = 2;
const BLOCK_TABLE: usize = 3;

/// The arrays of the step that was staged last, in a device's memory. On a CPU it holds nothing, and ops read
/// those of the [`ForwardMeta`].
#[derive(Default)]
pub struct MetaOnDevice {
    staging: Option<Staging>,
    /// Sequences and tokens of the step, and entries of a row of its table.
    shape: [usize; 3],
    max_q_len: usize,
    max_kv_len: usize,
}

impl MetaOnDevice {
    /// Enqueues the copy of a step's arrays to the runtime's device. Does nothing on a CPU.
    ///
    /// Memory is taken by the first step, for the largest that `meta` can hold, and stays where it is while
    /// steps come from this `meta`, or from one that is no larger. `captured`: the step is being recorded, or
    /// a recorded one will be replayed.
    ///
    /// # Errors
    /// [`KvError::Tensor`]: no memory, or a device's own.
    pub fn stage(&mut self, rt: &Runtime, meta: &ForwardMeta, captured: bool) -> Result<()> {
        if rt.gpu().is_none() {
            return Ok(());
        }
        let staging = match self.staging.take().filter(|s| has_room(s, meta)) {
            Some(staging) => self.staging.insert(staging),
            None => self.staging.insert(Staging::new(rt, &capacity(meta))?),
        };
        staging.write(CU_SEQLENS_Q, meta.cu_seqlens_q())?;
        staging.write(SEQ_LENS_KV, meta.seq_lens_kv())?;
        staging.write(SLOT_MAPPING, meta.slot_mapping())?;
        staging.write(BLOCK_TABLE, meta.block_table())?;
        staging.upload()?;
        self.shape = shape(meta);
        let q_lens = meta.cu_seqlens_q().windows(2).map(|w| (w[1] - w[0]) as usize);
        self.max_q_len = q_lens.max().unwrap_or(0);
        self.max_kv_len = meta.seq_lens_kv().iter().map(|len| *len as usize).max().unwrap_or(0);
        if captured {
            self.max_q_len = self.max_q_len.max(meta.captured_queries());
            self.max_kv_len = meta.max_blocks() * meta.block_size();
        }
        Ok(())
    }

    /// `[T]`: slot of each token's key and value.
    ///
    /// # Errors
    /// [`KvError::Malformed`] if `meta` has not the shape of the staged step.
    pub fn slot_mapping<'a>(&'a self, meta: &'a ForwardMeta) -> Result<Index<'a, i64>> {
        let host = meta.slot_mapping();
        let Some(staging) = self.staged(meta)? else { return Ok(host.into()) };
        Ok(Index::new(host, Some(staging.view(SLOT_MAPPING, host.len())?)))
    }

    /// Sequences, lengths and tables; `None` on a CPU.
    ///
    /// # Errors
    /// [`KvError::Malformed`] if `meta` has not the shape of the staged step.
    pub fn sequences(&self, meta: &ForwardMeta) -> Result<Option<DeviceSequences<'_>>> {
        let Some(staging) = self.staged(meta)? else { return Ok(None) };
        let [sequences, _, width] = self.shape;
        Ok(Some(DeviceSequences {
            cu_seqlens_q: staging.view(CU_SEQLENS_Q, sequences + 1)?,
            seq_lens_kv: staging.view(SEQ_LENS_KV, sequences)?,
            block_table: staging.view(BLOCK_TABLE, sequences * width)?,
            max_q_len: self.max_q_len,
            max_kv_len: self.max_kv_len,
        }))
    }

    /// The arrays, if there are any. A step of another shape must have been forgotten to be staged.
    fn staged(&self, meta: &ForwardMeta) -> Result<Option<&Staging>> {
        let Some(staging) = &self.staging else { return Ok(None) };
        if shape(meta) == self.shape {
            return Ok(Some(staging));
        }
        let ([s, t, _], [sequences, tokens, _]) = (shape(meta), self.shape);
        Err(KvError::Malformed(format!(
            "a step of {s} sequences and {t} tokens, but one of {sequences} and {tokens} is on the device: stage each \
             step before it runs"
        )))
    }
}

/// Sequences, tokens, entries of a row of the table.
fn shape(meta: &ForwardMeta) -> [usize; 3] {
    [meta.sequences(), meta.tokens(), meta.max_blocks()]
}

/// Maximum number of elements of each array of `meta`.
fn capacity(meta: &ForwardMeta) -> [(DType, usize); 4] {
    let sequences = meta.row_lens.len();
    [
        (DType::I32, sequences + 1),
        (DType::I32, sequences),
        (DType::I64, meta.max_tokens),
        (DType::I32, sequences * meta.max_blocks),
    ]
}

fn has_room(staging: &Staging, meta: &ForwardMeta) -> bool {
    capacity(meta).iter().enumerate().all(|(i, (_, n))| *n <= staging.capacity(i))
}
