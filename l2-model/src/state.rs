//! What a sequence remembers between steps, and the seam behind which it is kept.
//!
//! The decoder does not know where keys and values live. It hands each layer's new ones to a
//! [`SequenceState`] and gets attention's output back. [`ContiguousState`], here, gives every
//! sequence one run of memory as long as the longest it may become: simple, and wasteful as soon as
//! sequences differ in length. The paged state of the next floor implements the same trait over
//! blocks; the decoder stays as it is.

use std::any::Any;

use l1_tensor::ops::{AttentionParams, AttentionScratch, KvCache, Sequences, TILE, attention};
use l1_tensor::{DType, Runtime, TensorMut, TensorRef};

use crate::batch::BatchError;
use crate::{Batch, Error, ModelConfig, Result};

/// What a sequence's state was at some moment. Made and understood by one implementation.
pub struct Snapshot {
    /// Tokens the sequence had.
    pub len: usize,
    /// The implementation's own data.
    pub data: Box<dyn Any + Send>,
}

/// The memory of sequences, one slot each.
///
/// A step runs `begin`, then `attend` for every attention layer, then `commit`. A step that fails
/// between has changed nothing that counts: lengths move only at `commit`.
pub trait SequenceState {
    /// Prepare a step: check that positions continue the sequences and that everything fits.
    ///
    /// # Errors
    /// [`BatchError`] for a slot, a position or a length that cannot be.
    fn begin(&mut self, batch: &Batch) -> Result<()>;

    /// Store this step's keys and values of one layer and attend over all there are.
    ///
    /// `q` `[T, H_q, D]`, `k` and `v` `[T, H_kv, D]` f32, after rope; `out` `[T, H_q * D]`.
    ///
    /// # Errors
    /// What the ops report.
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

    /// The step is done: the batch's tokens are part of their sequences.
    fn commit(&mut self, batch: &Batch);

    /// Tokens a slot holds.
    fn len(&self, slot: u32) -> usize;

    /// Keep a copy of a sequence as it is now.
    ///
    /// # Errors
    /// [`BatchError`] for a slot that does not exist, or no memory.
    fn snapshot(&self, slot: u32) -> Result<Snapshot>;

    /// Put a sequence back to a snapshot, in any slot.
    ///
    /// # Errors
    /// A snapshot of another implementation or geometry.
    fn restore(&mut self, slot: u32, snapshot: &Snapshot) -> Result<()>;

    /// Forget a sequence's tokens from `len` on (drafts that were not accepted).
    ///
    /// # Errors
    /// [`BatchError`] when the sequence is shorter.
    fn rollback(&mut self, slot: u32, len: usize) -> Result<()>;

    /// Forget a sequence.
    fn drop_sequence(&mut self, slot: u32);

    /// Bytes a sequence's state takes.
    fn bytes(&self, slot: u32) -> usize;
}

/// One run of memory for each sequence.
pub struct ContiguousState {
    layers: Vec<Option<KvCache>>,
    /// Tile indices of all slots, in order: slot `s` owns `s * tiles_per_slot..`.
    tiles: Vec<u32>,
    tiles_per_slot: usize,
    max_len: usize,
    lens: Vec<usize>,
    /// The step each slot took part in last, and the number of the step in progress.
    last_step: Vec<u64>,
    step: u64,
    // Of the step in progress.
    slots: Vec<i64>,
    kv_lens: Vec<i32>,
    table_rows: Vec<usize>,
}

impl ContiguousState {
    /// Memory for `slots` sequences of at most `max_len` tokens. `dtype` is the cache's: F32 or
    /// BF16, see [`Runtime::activation_dtype`].
    ///
    /// # Errors
    /// No memory, or more than 32-bit indices address.
    pub fn new(config: &ModelConfig, slots: usize, max_len: usize, dtype: DType) -> Result<Self> {
        let tiles_per_slot = max_len.div_ceil(TILE);
        let total = tiles_per_slot.saturating_mul(slots);
        let mut layers: Vec<_> = config.layers.iter().map(|_| None).collect();
        for (i, a) in config.attention_layers() {
            layers[i] = Some(KvCache::new(total, a.kv_heads, a.head_dim, dtype)?);
        }
        Ok(Self {
            layers,
            tiles: (0..total as u32).collect(),
            tiles_per_slot,
            max_len,
            lens: vec![0; slots],
            last_step: vec![0; slots],
            step: 0,
            slots: Vec::new(),
            kv_lens: Vec::with_capacity(slots),
            table_rows: Vec::with_capacity(slots),
        })
    }

    /// The most tokens a sequence may have.
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

    fn tiles_of(&self, slot: usize, len: usize) -> &[u32] {
        &self.tiles[slot * self.tiles_per_slot..][..len.div_ceil(TILE)]
    }
}

/// The data of a [`ContiguousState`]'s snapshot: the used tiles of every layer.
struct Tiles(Vec<Option<KvCache>>);

impl SequenceState for ContiguousState {
    fn begin(&mut self, batch: &Batch) -> Result<()> {
        self.step += 1;
        self.slots.clear();
        self.kv_lens.clear();
        self.table_rows.clear();
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
            let first = slot * self.tiles_per_slot;
            self.slots.extend((len..end).map(|p| (first * TILE + p) as i64));
            self.kv_lens.push(end as i32);
            self.table_rows.push(first);
            // end of exercise
        }
        Ok(())
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
        cache.write(rt, &self.slots, k, v)?;
        let sequences = Sequences {
            cu_seqlens_q: batch.cu_seqlens_q,
            seq_lens_kv: &self.kv_lens,
            tile_table: &self.tiles,
            table_rows: &self.table_rows,
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
        let from = self.tiles_of(slot, len);
        let to: Vec<u32> = (0..from.len() as u32).collect();
        let copy = |cache: &KvCache| -> Result<KvCache> {
            let mut out = KvCache::new(from.len(), cache.heads(), cache.head_dim(), cache.dtype())?;
            out.copy_tiles(&to, cache, from)?;
            Ok(out)
        };
        let layers =
            self.layers.iter().map(|l| l.as_ref().map(copy).transpose()).collect::<Result<_>>()?;
        Ok(Snapshot { len, data: Box::new(Tiles(layers)) })
        // end of exercise
    }

    fn restore(&mut self, slot: u32, snapshot: &Snapshot) -> Result<()> {
        let slot = self.slot(slot)?;
        let foreign = || {
            let why = "this snapshot was taken of another kind of state".to_string();
            Error::from(BatchError::Malformed(why))
        };
        let Tiles(saved) = snapshot.data.downcast_ref().ok_or_else(foreign)?;
        if saved.len() != self.layers.len() {
            return Err(foreign());
        }
        if snapshot.len > self.max_len {
            let (len, capacity) = (snapshot.len, self.max_len);
            return Err(BatchError::TooLong { len, capacity }.into());
        }
        let to = &self.tiles[slot * self.tiles_per_slot..][..snapshot.len.div_ceil(TILE)];
        let from: Vec<u32> = (0..to.len() as u32).collect();
        for (cache, saved) in self.layers.iter_mut().zip(saved) {
            match (cache, saved) {
                (Some(cache), Some(saved)) => cache.copy_tiles(to, saved, &from)?,
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
            let tile = self.tiles[slot * self.tiles_per_slot + len / TILE];
            for cache in self.layers.iter_mut().flatten() {
                cache.clear(tile, len % TILE)?;
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
        let tiles = self.len(slot).div_ceil(TILE);
        self.layers.iter().flatten().map(|c| c.tile_bytes() * tiles).sum()
    }
}
