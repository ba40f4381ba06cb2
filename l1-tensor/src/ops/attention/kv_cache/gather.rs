//! Reading a cache back, one number after the other: for references and tests.

use super::{KvCache, TILE};
use crate::{DType, Device, Error, Result, bf16, e4m3};

impl KvCache {
    /// Returns the keys and values of a sequence's first `len` tokens as stored, rounding included:
    /// dense f32 `[len, heads, head_dim]` each. `table` is the sequence's row of a block table.
    /// Attention over blocks computes dense attention over these.
    ///
    /// # Errors
    /// A table that is too short, or an entry among those needed that is not a block of the pool.
    pub fn gather(&self, table: &[i32], len: usize) -> Result<(Vec<f32>, Vec<f32>)> {
        const OP: &str = "kv_gather";
        let blocks = len.div_ceil(self.block_size());
        let Some(table) = table.get(..blocks) else {
            let why = format!("{len} tokens are {blocks} blocks, the table has {}", table.len());
            return Err(Error::BadParameter { op: OP, why });
        };
        if let Some(bad) = table.iter().find(|b| self.block(**b).is_none()) {
            let (what, index, limit) = ("block", i64::from(*bad), self.blocks());
            return Err(Error::OutOfRange { op: OP, what, index, limit });
        }
        if self.device() != Device::Cpu {
            return self.gather_from_cuda(&table[..blocks], len);
        }
        let size = len * self.heads() * self.head_dim();
        let (mut k, mut v) = (Vec::with_capacity(size), Vec::with_capacity(size));
        for token in 0..len {
            let block = table[token / self.block_size()] as usize;
            let slot = block * self.block_size() + token % self.block_size();
            for head in 0..self.heads() {
                for d in 0..self.head_dim() {
                    let (key, value) = self.read(slot, head, d);
                    k.push(key);
                    v.push(value);
                }
            }
        }
        Ok((k, v))
    }

    /// Reads element `d` of the key and the value in a slot, by the layout at the top of
    /// `kv_cache.rs`: keys `[D / P][16][P]`, values `[16 / P][D'][P]`.
    pub(super) fn read(&self, slot: usize, head: usize, d: usize) -> (f32, f32) {
        let (tile, i) = (slot / TILE, slot % TILE);
        let (p, padded) = (self.geometry.per_word(), self.geometry.padded());
        let part = tile * self.heads + head;
        let start = part * self.geometry.elems();
        let key = start + (d / p * TILE + i) * p + d % p;
        let value = start + (i / p * padded + d) * p + i % p;
        let scale = |which: usize| match self.geometry.dtype {
            DType::F8E4M3 => {
                let biased = self.scales.raw()[(2 * part + which) * TILE + i];
                f32::from_bits(u32::from(biased) << 23)
            }
            _ => 1.0,
        };
        (
            scale(0) * number(self.k.raw(), self.geometry.dtype, key),
            scale(1) * number(self.v.raw(), self.geometry.dtype, value),
        )
    }
}

/// Reads element `i` of these bytes.
fn number(bytes: &[u8], dtype: DType, i: usize) -> f32 {
    let bytes = &bytes[i * dtype.size()..][..dtype.size()];
    match *bytes {
        [code] => e4m3::to_f32(code),
        [a, b] => bf16::from_le_bytes([a, b]).to_f32(),
        [a, b, c, d] => f32::from_le_bytes([a, b, c, d]),
        _ => unreachable!("a cache holds elements of 1, 2 or 4 bytes"),
    }
}
