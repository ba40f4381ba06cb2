//! A cache on the device: `[blocks, block_size, heads, head_dim]`, keys and values apart.
//!
//! The places of a block lie behind each other there, all heads of a token together. So a prefix of a
//! block is one run of bytes, and copying or clearing it is one call of the driver for the keys and
//! one for the values, between caches with blocks of any sizes. All of it is only enqueued. Blocks that leave for
//! the host, or come from there, are collected by a kernel first, and waited for.

use std::ops::Range;
use std::sync::Arc;

use kernels::{Buffer, Gpu, Kv, KvMut, KvShape, ops};

use super::indices::Numbers;
use super::same_device;
use super::views::{f32_heads, float};
use crate::ops::KvCache;
use crate::storage::Storage;
use crate::{Index, Result, TensorRef};

/// Keys or values of a cache on a device.
fn memory<'a>(op: &'static str, storage: &'a Storage, gpu: &Arc<Gpu>) -> Result<&'a Buffer> {
    let memory = storage.on_cuda(op)?;
    same_device(op, gpu, memory.gpu())?;
    Ok(memory)
}

impl KvCache {
    fn shape(&self, op: &'static str) -> Result<KvShape> {
        Ok(KvShape {
            blocks: self.blocks(),
            block_size: self.block_size(),
            heads: self.heads(),
            dim: self.head_dim(),
            dtype: float(op, self.dtype(), self.stored()[0].layout())?,
        })
    }

    /// What the launchers read.
    pub(crate) fn on_cuda(&self, op: &'static str, gpu: &Arc<Gpu>) -> Result<Kv<'_>> {
        let shape = self.shape(op)?;
        let [k, v] = self.stored().map(|t| memory(op, t.storage(), gpu));
        Ok(Kv::new(shape, k?.view(), v?.view())?)
    }

    /// Store tokens; slots and shapes were checked.
    pub(crate) fn write_on_cuda(
        &mut self,
        op: &'static str,
        gpu: &Arc<Gpu>,
        slots: Index<'_, i64>,
        k: TensorRef<'_>,
        v: TensorRef<'_>,
    ) -> Result<()> {
        let (k, v) = (f32_heads(op, gpu, k)?, f32_heads(op, gpu, v)?);
        let slots = Numbers::of(op, gpu, slots)?;
        let shape = self.shape(op)?;
        let [keys, values] = self.stored_mut().map(|t| t.storage_mut().on_cuda_mut(op));
        let (keys, values) = (keys?, values?);
        same_device(op, gpu, keys.gpu())?;
        let cache = KvMut::new(shape, keys.view_mut(), values.view_mut())?;
        Ok(ops::kv_write(gpu, cache, slots.view(), k, v)?)
    }

    /// Bytes of some places of a block, of its keys and of its values alike.
    fn run(&self, block: u32, places: Range<usize>) -> [usize; 2] {
        let token = self.heads() * self.head_dim() * self.dtype().size();
        let first = block as usize * self.block_size() + places.start;
        [first * token, places.len() * token]
    }

    /// Zero some places of a block.
    pub(crate) fn clear_on_cuda(
        &mut self,
        op: &'static str,
        block: u32,
        places: Range<usize>,
    ) -> Result<()> {
        let [start, len] = self.run(block, places);
        for part in self.stored_mut() {
            let memory = part.storage_mut().on_cuda_mut(op)?;
            let gpu = Arc::clone(memory.gpu());
            memory.view_mut().part(start, len).clear(&gpu)?;
        }
        Ok(())
    }

    /// The first `len` tokens of the blocks of a table, as `gather` gives them.
    pub(crate) fn gather_from_cuda(
        &self,
        table: &[i32],
        len: usize,
    ) -> Result<(Vec<f32>, Vec<f32>)> {
        let [keys, values] = self.stored().map(|stored| -> Result<Vec<f32>> {
            let mut out = Vec::new();
            for (i, block) in table.iter().enumerate() {
                let tokens = self.block_size().min(len - i * self.block_size());
                let block = stored.view().narrow(0, *block as usize, 1)?.narrow(1, 0, tokens)?;
                out.extend(block.to_vec_f32()?);
            }
            Ok(out)
        });
        Ok((keys?, values?))
    }

    /// Copies the keys and the values of blocks of caches to the host, those of each to the bytes from its number on,
    /// and waits for them.
    pub(crate) fn read_from_cuda<'a>(
        op: &'static str,
        caches: impl IntoIterator<Item = (&'a KvCache, usize)>,
        blocks: &[u32],
        out: &mut [u8],
    ) -> Result<()> {
        let mut caches = caches.into_iter().peekable();
        let Some((first, _)) = caches.peek() else { return Ok(()) };
        let gpu = Arc::clone(first.stored()[0].storage().on_cuda(op)?.gpu());
        let caches = caches.map(|(cache, start)| Ok((cache.on_cuda(op, &gpu)?, start)));
        Ok(ops::read_blocks(&gpu, caches.collect::<Result<Vec<_>>>()?, blocks, out)?)
    }

    /// Copies the keys and the values of blocks of caches from the host, those of each from the bytes from its number
    /// on, and waits for it.
    pub(crate) fn write_to_cuda<'a>(
        op: &'static str,
        caches: impl IntoIterator<Item = (&'a mut KvCache, usize)>,
        blocks: &[u32],
        bytes: &[u8],
    ) -> Result<()> {
        let mut caches = caches.into_iter().peekable();
        let Some((first, _)) = caches.peek() else { return Ok(()) };
        let gpu = Arc::clone(first.stored()[0].storage().on_cuda(op)?.gpu());
        let caches = caches.map(|(cache, start)| {
            let shape = cache.shape(op)?;
            let [keys, values] = cache.stored_mut().map(|t| t.storage_mut().on_cuda_mut(op));
            let (keys, values) = (keys?, values?);
            same_device(op, &gpu, keys.gpu())?;
            Ok((KvMut::new(shape, keys.view_mut(), values.view_mut())?, start))
        });
        Ok(ops::write_blocks(&gpu, caches.collect::<Result<Vec<_>>>()?, blocks, bytes)?)
    }

    /// Copy the first places of another cache's block.
    pub(crate) fn copy_on_cuda(
        &mut self,
        op: &'static str,
        to: u32,
        source: &KvCache,
        from: u32,
        tokens: usize,
    ) -> Result<()> {
        let ([to, len], [from, _]) = (self.run(to, 0..tokens), source.run(from, 0..tokens));
        for (ours, theirs) in self.stored_mut().into_iter().zip(source.stored()) {
            let ours = ours.storage_mut().on_cuda_mut(op)?;
            let gpu = Arc::clone(ours.gpu());
            let from = memory(op, theirs.storage(), &gpu)?.view().part(from, len);
            ours.view_mut().part(to, len).copy_within_device(&gpu, from)?;
        }
        Ok(())
    }

    /// Copy the first places of a block to another block of this cache.
    pub(crate) fn copy_inside_on_cuda(
        &mut self,
        op: &'static str,
        to: u32,
        from: u32,
        tokens: usize,
    ) -> Result<()> {
        let ([to, len], [from, _]) = (self.run(to, 0..tokens), self.run(from, 0..tokens));
        for part in self.stored_mut() {
            let memory = part.storage_mut().on_cuda_mut(op)?;
            let gpu = Arc::clone(memory.gpu());
            memory.view_mut().copy_inside(&gpu, to, from, len)?;
        }
        Ok(())
    }
}
