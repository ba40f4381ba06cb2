//! Recurrent state, such as that of Mamba or DeltaNet layers: one state per sequence, not per token.
//!
//! Keys and values grow with every token, and going back means forgetting the last of them. A
//! recurrent layer keeps a state of one size, which every token changes in place: there is no way
//! back but to a copy that was made before. So this state does not live in blocks. It has a slot for each
//! sequence, and snapshots.
//!
//! No supported model has such layers yet.

use l1_tensor::Error;
use l1_tensor::storage::{ALIGN, AlignedBytes};

use crate::{KvError, Result};

/// Store of the recurrent state of a fixed number of sequences, allocated once.
pub struct RecurrentStore {
    /// `[slot][layer]`, each layer from a new cache line on: as right for f32 as for vectors of them.
    memory: AlignedBytes,
    geometry: Geometry,
    slots: usize,
}

/// Copy of one sequence's recurrent state.
#[derive(Clone)]
pub struct RecurrentSnapshot {
    data: Box<[u8]>,
    geometry: Geometry,
}

/// How a slot is laid out.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Geometry {
    /// Bytes of each layer; 0 where a layer keeps nothing.
    layers: Vec<usize>,
    /// Where each begins within a slot.
    begins: Vec<usize>,
    /// Bytes of a slot.
    slot: usize,
}

impl RecurrentStore {
    /// Zeroed state for `slots` sequences. `bytes_per_layer` has an entry for each layer of the model,
    /// 0 for one that keeps nothing.
    ///
    /// # Errors
    /// No memory, or sizes beyond what can be addressed.
    pub fn new(bytes_per_layer: &[usize], slots: usize) -> Result<Self> {
        let too_large = || {
            let why = format!("recurrent state of {slots} sequences is larger than any memory");
            KvError::BadConfig(why)
        };
        let mut slot = 0usize;
        let mut begins = Vec::with_capacity(bytes_per_layer.len());
        for bytes in bytes_per_layer {
            begins.push(slot);
            let padded = bytes.checked_next_multiple_of(ALIGN).ok_or_else(too_large)?;
            slot = slot.checked_add(padded).ok_or_else(too_large)?;
        }
        let total = slot.checked_mul(slots).ok_or_else(too_large)?;
        let geometry = Geometry { layers: bytes_per_layer.to_vec(), begins, slot };
        Ok(Self { memory: AlignedBytes::zeroed(total)?, geometry, slots })
    }

    /// Number of slots.
    pub fn slots(&self) -> usize {
        self.slots
    }

    /// Size of one sequence's state, padding included, in bytes.
    pub fn bytes_per_slot(&self) -> usize {
        self.geometry.slot
    }

    /// Size of all slots, in bytes.
    pub fn bytes(&self) -> usize {
        self.geometry.slot * self.slots
    }

    /// State of one sequence in one layer, aligned to 64 bytes.
    ///
    /// # Errors
    /// A layer or slot that does not exist.
    pub fn slot(&self, layer: usize, slot: usize) -> Result<&[u8]> {
        let range = self.range(layer, slot)?;
        Ok(&self.memory.as_slice()[range])
    }

    /// Mutable state of one sequence in one layer.
    ///
    /// # Errors
    /// A layer or slot that does not exist.
    pub fn slot_mut(&mut self, layer: usize, slot: usize) -> Result<&mut [u8]> {
        let range = self.range(layer, slot)?;
        Ok(&mut self.memory.as_mut_slice()[range])
    }

    /// Returns a copy of a sequence's state.
    ///
    /// # Errors
    /// A slot that does not exist.
    pub fn snapshot(&self, slot: usize) -> Result<RecurrentSnapshot> {
        let begin = self.begin(slot)?;
        let data = self.memory.as_slice()[begin..][..self.geometry.slot].into();
        Ok(RecurrentSnapshot { data, geometry: self.geometry.clone() })
    }

    /// Restores a snapshot into any slot. A recurrent sequence is rolled back this way: to a snapshot, and
    /// then forward again through the tokens since.
    ///
    /// # Errors
    /// A slot that does not exist, or a snapshot of a store with other layers.
    pub fn restore(&mut self, slot: usize, snapshot: &RecurrentSnapshot) -> Result<()> {
        let begin = self.begin(slot)?;
        if snapshot.geometry != self.geometry {
            return Err(KvError::Malformed(
                "this snapshot of recurrent state is of a model with other layers".into(),
            ));
        }
        self.memory.as_mut_slice()[begin..][..self.geometry.slot].copy_from_slice(&snapshot.data);
        Ok(())
    }

    /// Drops a sequence: zeroes its slot, as at the beginning of every sequence.
    ///
    /// # Errors
    /// A slot that does not exist.
    pub fn drop_sequence(&mut self, slot: usize) -> Result<()> {
        let begin = self.begin(slot)?;
        self.memory.as_mut_slice()[begin..][..self.geometry.slot].fill(0);
        Ok(())
    }

    fn begin(&self, slot: usize) -> Result<usize> {
        check("recurrent slot", slot, self.slots)?;
        Ok(slot * self.geometry.slot)
    }

    fn range(&self, layer: usize, slot: usize) -> Result<std::ops::Range<usize>> {
        check("recurrent layer", layer, self.geometry.layers.len())?;
        let begin = self.begin(slot)? + self.geometry.begins[layer];
        Ok(begin..begin + self.geometry.layers[layer])
    }
}

impl RecurrentSnapshot {
    /// Size of the snapshot, in bytes.
    pub fn bytes(&self) -> usize {
        self.data.len()
    }
}

fn check(what: &'static str, index: usize, limit: usize) -> Result<()> {
    if index < limit {
        return Ok(());
    }
    Err(Error::OutOfRange { op: "recurrent state", what, index: index as i64, limit }.into())
}
