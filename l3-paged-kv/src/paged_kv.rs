//! The KV cache: keys and values of every layer, in blocks.
//!
//! One cache per layer, all with the same number of blocks, allocated once. A block id means the same
//! block in each layer, so one block table serves the whole model. This module does not know which
//! sequence owns a block: [`ForwardMeta`] says where a step writes and what it reads.

use l1_tensor::ops::{AttentionParams, AttentionScratch, KvCache, Sequences, attention};
use l1_tensor::{DType, Device, HostBuffer, HostBuffers, Runtime, TensorMut, TensorRef};
use l2_model::ModelConfig;

use crate::{BlockId, CopyBlock, ForwardMeta, KvError, MetaOnDevice, Result};

/// Keys and values of a model, in `num_blocks` blocks (the null block included), on one device.
pub struct PagedKv {
    /// One for each layer that attends.
    layers: Vec<Option<KvCache>>,
    num_blocks: usize,
    block_size: usize,
    dtype: DType,
    device: Device,
    /// The step's arrays, where the device reads them.
    staged: MetaOnDevice,
    /// Memory for chunks on the host.
    buffers: HostBuffers,
}

impl PagedKv {
    /// Allocates memory for `num_blocks` blocks of `block_size` tokens. `dtype` is F32, BF16 or F8E4M3: see
    /// [`KvCache`] for what the last one rounds.
    ///
    /// # Errors
    /// [`KvError::Tensor`]: no memory, or a block size or dtype that the cache does not take.
    pub fn new(
        config: &ModelConfig,
        num_blocks: usize,
        block_size: usize,
        dtype: DType,
    ) -> Result<Self> {
        Self::new_on(Device::Cpu, config, num_blocks, block_size, dtype)
    }

    /// Allocates the cache in the memory of `device`, for a runtime on that device.
    ///
    /// # Errors
    /// As [`PagedKv::new`]; a dtype that the device's kernels do not read.
    pub fn new_on(
        device: Device,
        config: &ModelConfig,
        num_blocks: usize,
        block_size: usize,
        dtype: DType,
    ) -> Result<Self> {
        let mut layers: Vec<_> = config.layers.iter().map(|_| None).collect();
        for (i, a) in config.attention_layers() {
            let (heads, dim) = (a.kv_heads, a.head_dim);
            layers[i] = Some(KvCache::on(device, num_blocks, block_size, heads, dim, dtype)?);
        }
        let (staged, buffers) = (MetaOnDevice::default(), HostBuffers::new(device)?);
        Ok(Self { layers, num_blocks, block_size, dtype, device, staged, buffers })
    }

    /// Number of layers of the model, those without attention included.
    pub fn num_layers(&self) -> usize {
        self.layers.len()
    }

    /// Number of blocks, the null block included.
    pub fn num_blocks(&self) -> usize {
        self.num_blocks
    }

    /// Number of tokens per block.
    pub fn block_size(&self) -> usize {
        self.block_size
    }

    /// Dtype of the stored keys and values.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Device that stores the keys and values.
    pub fn device(&self) -> Device {
        self.device
    }

    /// Size of all blocks of all layers, in bytes.
    pub fn bytes(&self) -> usize {
        self.layers.iter().flatten().map(KvCache::bytes).sum()
    }

    /// Size of one block in all layers, in bytes.
    pub fn block_bytes(&self) -> usize {
        self.layers.iter().flatten().map(KvCache::block_bytes).sum()
    }

    /// KV cache of a layer; `None` for a layer without attention.
    pub fn layer(&self, layer: usize) -> Option<&KvCache> {
        self.layers.get(layer)?.as_ref()
    }

    /// KV caches of all layers.
    pub(crate) fn layers(&self) -> &[Option<KvCache>] {
        &self.layers
    }

    /// KV caches of all layers, to write.
    pub(crate) fn layers_mut(&mut self) -> &mut [Option<KvCache>] {
        &mut self.layers
    }

    /// Copies a step's arrays to the device, before its first layer; does nothing on a CPU. Only enqueues.
    /// `captured`: the step is being recorded, or a recorded one will be replayed: see [`MetaOnDevice::stage`].
    ///
    /// On a device, [`PagedKv::write`] and [`PagedKv::attend`] then read these, and refuse a step of another
    /// shape. If no step was ever staged, each of them copies what it needs, and waits for it.
    ///
    /// # Errors
    /// [`KvError::Tensor`]: no memory, or a device's own.
    pub fn stage(&mut self, rt: &Runtime, meta: &ForwardMeta, captured: bool) -> Result<()> {
        self.staged.stage(rt, meta, captured)
    }

    /// Stores this step's keys and values of one layer, then attends over all keys of each sequence.
    ///
    /// `q` `[T, H_q, D]`, `k` and `v` `[T, H_kv, D]` f32, after rope; `out` `[T, H_q * D]`. All are
    /// stored before any is read: a sequence may share a block that another one fills in this very
    /// step.
    ///
    /// # Errors
    /// [`KvError::Malformed`] for a layer that does not attend or a step of another block size; what
    /// the ops report.
    #[allow(clippy::too_many_arguments)]
    pub fn attend(
        &mut self,
        rt: &Runtime,
        layer: usize,
        meta: &ForwardMeta,
        q: TensorRef,
        k: TensorRef,
        v: TensorRef,
        params: AttentionParams,
        scratch: &mut AttentionScratch,
        out: TensorMut,
    ) -> Result<()> {
        self.write(rt, layer, meta, k, v)?;
        let (cache, staged) = self.layer_of(layer, meta)?;
        // exercise l3.attend
        let sequences = Sequences {
            cu_seqlens_q: meta.cu_seqlens_q(),
            seq_lens_kv: meta.seq_lens_kv(),
            block_table: meta.block_table(),
            max_blocks: meta.max_blocks(),
            device: staged.sequences(meta)?,
        };
        Ok(attention(rt, q, cache, sequences, params, scratch, out)?)
        // end of exercise
    }

    /// Stores this step's keys and values of one layer: the first half of [`PagedKv::attend`].
    ///
    /// # Errors
    /// As for [`PagedKv::attend`].
    pub fn write(
        &mut self,
        rt: &Runtime,
        layer: usize,
        meta: &ForwardMeta,
        k: TensorRef,
        v: TensorRef,
    ) -> Result<()> {
        let (cache, staged) = self.layer_of(layer, meta)?;
        // exercise l3.attend
        Ok(cache.write(rt, staged.slot_mapping(meta)?, k, v)?)
        // end of exercise
    }

    /// The memory of a layer, for a step in blocks of its size, and the step's arrays on the device.
    fn layer_of(
        &mut self,
        layer: usize,
        meta: &ForwardMeta,
    ) -> Result<(&mut KvCache, &MetaOnDevice)> {
        if meta.block_size() != self.block_size {
            let (theirs, ours) = (meta.block_size(), self.block_size);
            let why =
                format!("a step in blocks of {theirs} tokens over memory in blocks of {ours}");
            return Err(KvError::Malformed(why));
        }
        let cache = self.layers.get_mut(layer).and_then(Option::as_mut);
        Ok((cache.ok_or_else(|| no_cache(layer))?, &self.staged))
    }

    /// Copies the first tokens of a block to another, in every layer: used when a sequence is rolled back
    /// into the middle of a block that other sequences may read.
    ///
    /// # Errors
    /// Blocks that do not exist, or more tokens than a block has.
    pub fn copy(&mut self, copy: CopyBlock) -> Result<()> {
        // exercise l3.attend
        for cache in self.layers.iter_mut().flatten() {
            cache.copy_within(copy.to, copy.from, copy.tokens)?;
        }
        Ok(())
        // end of exercise
    }

    /// Zeroes the slots of a block from `offset` on, in every layer, after a rollback. A mask hides them from the
    /// scores, but the sum over values multiplies them by zero, and
    /// `0 * NaN` is NaN.
    ///
    /// # Errors
    /// A block that does not exist.
    pub fn clear(&mut self, block: BlockId, offset: usize) -> Result<()> {
        // exercise l3.attend
        for cache in self.layers.iter_mut().flatten() {
            cache.clear(block, offset)?;
        }
        Ok(())
        // end of exercise
    }

    /// Returns a copy of some blocks in new memory: block `i` of the copy is `blocks[i]` here.
    ///
    /// # Errors
    /// Blocks that do not exist, or no memory.
    pub fn save(&self, blocks: &[BlockId]) -> Result<PagedKv> {
        // exercise l3.attend
        let to: Vec<BlockId> = (0..blocks.len() as u32).collect();
        let save = |cache: &KvCache| -> Result<KvCache> {
            let (heads, dim) = (cache.heads(), cache.head_dim());
            let (n, size, dtype) = (blocks.len(), self.block_size, self.dtype);
            let mut copy = KvCache::on(self.device, n, size, heads, dim, dtype)?;
            copy.copy_blocks(&to, cache, blocks)?;
            Ok(copy)
        };
        let layers = self.layers.iter().map(|l| l.as_ref().map(save).transpose());
        let (layers, staged) = (layers.collect::<Result<_>>()?, MetaOnDevice::default());
        let buffers = self.buffers.clone();
        Ok(Self { layers, num_blocks: blocks.len(), staged, buffers, ..*self })
        // end of exercise
    }

    /// Copies saved blocks, from the first on, into blocks `to`.
    ///
    /// # Errors
    /// [`KvError::Malformed`] for blocks of another model, size or dtype, or more than were saved.
    pub fn load(&mut self, to: &[BlockId], saved: &PagedKv) -> Result<()> {
        self.check_saved(saved)?;
        // exercise l3.attend
        let from: Vec<BlockId> = (0..to.len() as u32).collect();
        let saved = saved.layers.iter().flatten();
        for (cache, saved) in self.layers.iter_mut().flatten().zip(saved) {
            cache.copy_blocks(to, saved, &from)?;
        }
        Ok(())
        // end of exercise
    }

    /// Number of bytes of one block of a layer in the exchange layout: see [`PagedKv::read_blocks`]. 0 for a layer without
    /// attention.
    pub fn exchange_bytes(&self, layer: usize) -> usize {
        self.layer(layer).map_or(0, KvCache::exchange_bytes)
    }

    /// Host memory of `len` bytes, whatever they are, from which and to which the device copies fast.
    pub fn host_buffer(&self, len: usize) -> HostBuffer {
        self.buffers.alloc(len)
    }

    /// Copies blocks of one layer out of the memory, one behind the other, into the layout that is the same on every device:
    /// for each block its keys `[block_size, heads, head_dim]`, then its values, row-major, in the dtype of the memory,
    /// little-endian; with fp8, one byte of scale for each token and head of the keys follows, then those of the values.
    /// `out` has [`PagedKv::exchange_bytes`] for each block. On CUDA it waits for the device.
    ///
    /// # Errors
    /// [`KvError::UnknownBlock`]; [`KvError::Malformed`] for a layer that does not attend; [`KvError::Tensor`] for another
    /// length of `out`, and errors of the device.
    pub fn read_blocks(&self, blocks: &[BlockId], layer: usize, out: &mut [u8]) -> Result<()> {
        self.check_blocks(blocks)?;
        let cache = self.layer(layer).ok_or_else(|| no_cache(layer))?;
        Ok(cache.read_blocks(blocks, out)?)
    }

    /// Copies bytes of that layout into blocks of one layer: the inverse of [`PagedKv::read_blocks`].
    ///
    /// # Errors
    /// As for [`PagedKv::read_blocks`]. Unless it is an error of the device, nothing was written.
    pub fn write_blocks(&mut self, blocks: &[BlockId], layer: usize, bytes: &[u8]) -> Result<()> {
        self.check_blocks(blocks)?;
        let cache = self.layers.get_mut(layer).and_then(Option::as_mut);
        Ok(cache.ok_or_else(|| no_cache(layer))?.write_blocks(blocks, bytes)?)
    }

    pub(crate) fn check_blocks(&self, blocks: &[BlockId]) -> Result<()> {
        let num_blocks = self.num_blocks;
        match blocks.iter().find(|block| **block as usize >= num_blocks) {
            Some(block) => Err(KvError::UnknownBlock { block: *block, num_blocks }),
            None => Ok(()),
        }
    }

    /// Whether saved blocks are of this kind.
    pub(crate) fn check_saved(&self, saved: &PagedKv) -> Result<()> {
        let kind = |cache: &Option<KvCache>| {
            let cache = cache.as_ref()?;
            Some((cache.heads(), cache.head_dim(), cache.dtype(), cache.block_size()))
        };
        let same = self.layers.iter().map(kind).eq(saved.layers.iter().map(kind));
        if same && self.device == saved.device {
            return Ok(());
        }
        let why = "these blocks were saved of another model, on another device, or in another dtype or size";
        Err(KvError::Malformed(why.into()))
    }
}

fn no_cache(layer: usize) -> KvError {
    let why = format!("layer {layer} has no KV cache: the cache was made for another model");
    KvError::Malformed(why)
}
