//! State of a sequence between steps: the trait [`SequenceState`], and its simplest implementation.
//!
//! The decoder does not know where keys and values are stored. It passes the new ones of each layer to a
//! [`SequenceState`], which returns attention's output. [`ContiguousState`], here, reserves memory for the maximum
//! length of every sequence: this is simple, and wastes memory when sequences differ in length. The paged state of the
//! next layer implements the same trait over small blocks, without a change of the decoder.

mod device;

use std::any::Any;

use l1_tensor::ops::{AttentionParams, AttentionScratch, KvCache, Sequences, TILE, attention};
use l1_tensor::{DType, Device, Runtime, TensorMut, TensorRef};

use crate::batch::BatchError;
use crate::{Batch, Error, ModelConfig, Result};
use device::OnDevice;

/// Copy of a sequence's state. Only the implementation that made it can restore it.
pub struct Snapshot {
    /// Number of tokens of the sequence.
    pub len: usize,
    /// Data of the implementation.
    pub data: Box<dyn Any + Send>,
}

/// Keys and values of sequences, one slot per sequence.
///
/// A step runs `begin` and `stage`, then `attend` for every attention layer, then `commit`. A step that
/// fails in between changes no length: lengths move only at `commit`.
pub trait SequenceState {
    /// Prepares a step: checks that positions continue the sequences and that everything fits.
    ///
    /// # Errors
    /// [`BatchError`] for an invalid slot, position or length.
    fn begin(&mut self, batch: &Batch) -> Result<()>;

    /// Copies what `attend` reads beside q, k and v (lengths, block tables, slots) to the runtime's device,
    /// at addresses that are the same in every step: a recorded step is replayed with what was
    /// staged last. Only enqueues. A state on a CPU has nothing to do.
    ///
    /// # Errors
    /// No memory, or a device's own.
    fn stage(&mut self, rt: &Runtime, batch: &Batch) -> Result<()> {
        let _ = (rt, batch);
        Ok(())
    }

    /// Begins an empty slot with the longest prefix of `tokens` that the state has cached from other
    /// sequences. Returns its length in tokens: these need not be computed. At least one token is left,
    /// because its logits are needed. A state without sharing returns 0.
    fn resume(&mut self, slot: u32, tokens: &[u32]) -> usize {
        let _ = (slot, tokens);
        0
    }

    /// Stores this step's keys and values of one layer and attends over all keys of each sequence.
    ///
    /// `q` `[T, H_q, D]`, `k` and `v` `[T, H_kv, D]` f32, after rope; `out` `[T, H_q * D]`.
    ///
    /// # Errors
    /// Errors of the ops.
    #[allow(clippy::too_many_arguments)]
    fn attend(
        &mut self,
        rt: &Runtime,
        layer: usize,
        batch: &Batch,
        q: TensorRef,
        k: TensorRef,
        v: TensorRef,
        params: AttentionParams,
        scratch: &mut AttentionScratch,
        out: TensorMut,
    ) -> Result<()>;

    /// Commits the step: the batch's tokens become part of their sequences.
    fn commit(&mut self, batch: &Batch);

    /// Number of tokens in a slot.
    fn len(&self, slot: u32) -> usize;

    /// Returns a copy of a sequence's state.
    ///
    /// # Errors
    /// [`BatchError`] for a slot that does not exist, or no memory.
    fn snapshot(&self, slot: u32) -> Result<Snapshot>;

    /// Restores a snapshot into any slot.
    ///
    /// # Errors
    /// A snapshot of another implementation or geometry.
    fn restore(&mut self, slot: u32, snapshot: &Snapshot) -> Result<()>;

    /// Removes a sequence's tokens from `len` on (rejected drafts).
    ///
    /// # Errors
    /// [`BatchError`] when the sequence is shorter.
    fn rollback(&mut self, slot: u32, len: usize) -> Result<()>;

    /// Drops a sequence: its slot is empty afterwards.
    fn drop_sequence(&mut self, slot: u32);

    /// Size of a sequence's state, in bytes.
    fn bytes(&self, slot: u32) -> usize;
}

/// State with one contiguous block per sequence: slot `s` owns block `s` of every layer's KV cache.
pub struct ContiguousState {
    layers: Vec<Option<KvCache>>,
    /// Tokens in a block: `max_len` in whole tiles.
    block_size: usize,
    max_len: usize,
    lens: Vec<usize>,
    /// Last step of each slot, and the number of the step in progress.
    last_step: Vec<u64>,
    step: u64,
    // Of the step in progress.
    slots: Vec<i64>,
    kv_lens: Vec<i32>,
    /// `[S, 1]`: the block of each sequence.
    block_table: Vec<i32>,
    device: Device,
    /// The same, where the device reads it.
    staged: OnDevice,
}

impl ContiguousState {
    /// Allocates memory for `slots` sequences of at most `max_len` tokens. `dtype` is that of the KV cache:
    /// F32, BF16 or F8E4M3, see [`Runtime::activation_dtype`] and [`KvCache`].
    ///
    /// # Errors
    /// No memory, another dtype, or more than 32-bit indices address.
    pub fn new(config: &ModelConfig, slots: usize, max_len: usize, dtype: DType) -> Result<Self> {
        Self::new_on(Device::Cpu, config, slots, max_len, dtype)
    }

    /// Allocates the state in the memory of `device`, for a runtime on that device.
    ///
    /// # Errors
    /// As [`ContiguousState::new`]; a dtype that the device's kernels do not read.
    pub fn new_on(
        device: Device,
        config: &ModelConfig,
        slots: usize,
        max_len: usize,
        dtype: DType,
    ) -> Result<Self> {
        let block_size = block_for(max_len);
        let mut layers: Vec<_> = config.layers.iter().map(|_| None).collect();
        for (i, a) in config.attention_layers() {
            let (heads, dim) = (a.kv_heads, a.head_dim);
            layers[i] = Some(KvCache::on(device, slots, block_size, heads, dim, dtype)?);
        }
        Ok(Self {
            layers,
            block_size,
            max_len,
            lens: vec![0; slots],
            last_step: vec![0; slots],
            step: 0,
            slots: Vec::new(),
            kv_lens: Vec::with_capacity(slots),
            block_table: Vec::with_capacity(slots),
            device,
            staged: OnDevice::default(),
        })
    }

    /// Maximum number of tokens of a sequence.
    pub fn max_len(&self) -> usize {
        self.max_len
    }

    fn slot(&self, slot: u32) -> Result<usize> {
        let (slot, slots) = (slot as usize, self.lens.len());
        if slot < slots {
            return Ok(slot);
        }
        Err(BatchError::Malformed(format!("state slot {slot}, but there are {slots}")).into())
    }
}

/// The size of a block for sequences of at most `len` tokens: whole tiles, at least one.
fn block_for(len: usize) -> usize {
    // No machine has memory for a length near the limit; allocating the cache fails with an error.
    len.max(1).checked_next_multiple_of(TILE).unwrap_or(usize::MAX / TILE * TILE)
}

/// Data of a [`ContiguousState`]'s snapshot: for every layer a cache of one block, with the size of the sequence.
struct Blocks(Vec<Option<KvCache>>);

impl SequenceState for ContiguousState {
    fn begin(&mut self, batch: &Batch) -> Result<()> {
        self.step += 1;
        self.slots.clear();
        self.kv_lens.clear();
        self.block_table.clear();
        for (s, slot) in batch.state_slots.iter().enumerate() {
            let slot = self.slot(*slot)?;
            if std::mem::replace(&mut self.last_step[slot], self.step) == self.step {
                let why = format!("state slot {slot} takes part twice in one step");
                return Err(BatchError::Malformed(why).into());
            }
            // exercise l2.state
            let span = batch.cu_seqlens_q[s] as usize..batch.cu_seqlens_q[s + 1] as usize;
            let len = self.lens[slot];
            let end = len + span.len();
            if end > self.max_len {
                return Err(BatchError::TooLong { len: end, capacity: self.max_len }.into());
            }
            let positions = &batch.positions[span];
            if let Some(i) = (0..positions.len()).find(|i| positions[*i] as usize != len + i) {
                let why = format!(
                    "sequence {s} has {len} tokens, so its token {i} is at position {}, not {}",
                    len + i,
                    positions[i]
                );
                return Err(BatchError::Malformed(why).into());
            }
            let first = slot * self.block_size;
            self.slots.extend((len..end).map(|p| (first + p) as i64));
            self.kv_lens.push(end as i32);
            self.block_table.push(slot as i32);
            // end of exercise
        }
        Ok(())
    }

    fn stage(&mut self, rt: &Runtime, batch: &Batch) -> Result<()> {
        self.staged.prepare(rt, self.lens.len(), self.max_len)?;
        self.staged.stage(batch.cu_seqlens_q, &self.kv_lens, &self.block_table, &self.slots)
    }

    fn attend(
        &mut self,
        rt: &Runtime,
        layer: usize,
        batch: &Batch,
        q: TensorRef,
        k: TensorRef,
        v: TensorRef,
        params: AttentionParams,
        scratch: &mut AttentionScratch,
        out: TensorMut,
    ) -> Result<()> {
        let Some(cache) = self.layers.get_mut(layer).and_then(Option::as_mut) else {
            let why =
                format!("layer {layer} has no attention state: it was made for another model");
            return Err(BatchError::Malformed(why).into());
        };
        // exercise l2.state
        cache.write(rt, self.staged.slots(&self.slots)?, k, v)?;
        let sequences = Sequences {
            cu_seqlens_q: batch.cu_seqlens_q,
            seq_lens_kv: &self.kv_lens,
            block_table: &self.block_table,
            max_blocks: 1,
            device: self.staged.sequences()?,
        };
        Ok(attention(rt, q, cache, sequences, params, scratch, out)?)
        // end of exercise
    }

    fn commit(&mut self, batch: &Batch) {
        // exercise l2.state
        for (slot, len) in batch.state_slots.iter().zip(&self.kv_lens) {
            self.lens[*slot as usize] = *len as usize;
        }
        // end of exercise
    }

    fn len(&self, slot: u32) -> usize {
        self.lens.get(slot as usize).copied().unwrap_or(0)
    }

    fn snapshot(&self, slot: u32) -> Result<Snapshot> {
        let slot = self.slot(slot)?;
        let len = self.lens[slot];
        // exercise l2.state
        let copy = |cache: &KvCache| -> Result<KvCache> {
            let (heads, dim) = (cache.heads(), cache.head_dim());
            let mut out = KvCache::on(self.device, 1, block_for(len), heads, dim, cache.dtype())?;
            out.copy_prefix(0, cache, slot as u32, len)?;
            Ok(out)
        };
        let layers =
            self.layers.iter().map(|l| l.as_ref().map(copy).transpose()).collect::<Result<_>>()?;
        Ok(Snapshot { len, data: Box::new(Blocks(layers)) })
        // end of exercise
    }

    fn restore(&mut self, slot: u32, snapshot: &Snapshot) -> Result<()> {
        let slot = self.slot(slot)?;
        let foreign = || {
            let why = "this snapshot was taken of another kind of state".to_string();
            Error::from(BatchError::Malformed(why))
        };
        let Blocks(saved) = snapshot.data.downcast_ref().ok_or_else(foreign)?;
        if saved.len() != self.layers.len() {
            return Err(foreign());
        }
        if snapshot.len > self.max_len {
            let (len, capacity) = (snapshot.len, self.max_len);
            return Err(BatchError::TooLong { len, capacity }.into());
        }
        for (cache, saved) in self.layers.iter_mut().zip(saved) {
            match (cache, saved) {
                (Some(cache), Some(saved)) => {
                    cache.copy_prefix(slot as u32, saved, 0, snapshot.len)?
                }
                (None, None) => {}
                _ => return Err(foreign()),
            }
        }
        self.lens[slot] = snapshot.len;
        Ok(())
    }

    fn rollback(&mut self, slot: u32, len: usize) -> Result<()> {
        let slot = self.slot(slot)?;
        let have = self.lens[slot];
        if len > have {
            let why = format!("cannot roll a sequence of {have} tokens back to {len}");
            return Err(BatchError::Malformed(why).into());
        }
        // exercise l2.state
        self.lens[slot] = len;
        if !len.is_multiple_of(TILE) {
            for cache in self.layers.iter_mut().flatten() {
                cache.clear(slot as u32, len)?;
            }
        }
        Ok(())
        // end of exercise
    }

    fn drop_sequence(&mut self, slot: u32) {
        if let Some(len) = self.lens.get_mut(slot as usize) {
            *len = 0;
        }
    }

    fn bytes(&self, slot: u32) -> usize {
        let held = self.len(slot).next_multiple_of(TILE);
        let caches = self.layers.iter().flatten();
        caches.map(|c| c.block_bytes() / self.block_size * held).sum()
    }
}
