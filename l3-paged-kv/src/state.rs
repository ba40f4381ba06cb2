//! l2's [`SequenceState`] over blocks, for use without a scheduler.
//!
//! A [`BlockManager`] assigns blocks to sequences, a [`PagedKv`] is their memory, a [`ForwardMeta`] describes both to
//! the kernels, and one [`TokenChain`] for each slot has the hashes of its blocks. A step uses them in this order:
//!
//! ```text
//! begin     blocks for every sequence of the step, or for none; hashes; the arrays of the step
//! stage     copies the arrays to where a device reads them
//! attend    once a layer: writes through the slots, reads through the tables
//! commit    lengths grow, hashes become final
//! ```
//!
//! A step that began and was not committed is undone by the next operation: its blocks are freed, its hashes are
//! withdrawn, and what it wrote is cleared. So a failed step changes nothing.

mod snapshot;

use l1_tensor::ops::{AttentionParams, AttentionScratch};
use l1_tensor::{DType, Device, Runtime, TensorMut, TensorRef};
use l2_model::{Batch, BatchError, ModelConfig, SequenceState, Snapshot};

use crate::events::EventStream;
use crate::trace::{BlockObserver, BlockOp};
use crate::{
    Admission, BlockHasher, BlockManager, ExtraKeys, ForwardMeta, KvError, ManagerConfig, PagedKv,
    PrefixHit, Result, SeqId, TokenChain,
};

/// Options of a [`PagedState`].
#[derive(Clone)]
pub struct PagedOptions {
    /// Number of blocks, the null block included.
    pub num_blocks: usize,
    /// Number of tokens per block, a power of two.
    pub block_size: usize,
    /// Dtype of the stored keys and values: F32, BF16 or F8E4M3.
    pub dtype: DType,
    /// Number of slots: sequences that can be held at once.
    pub slots: usize,
    /// Maximum number of tokens of one sequence.
    pub max_len: usize,
    /// Maximum number of tokens of one step, all sequences together.
    pub max_step_tokens: usize,
    /// Whether a new sequence may share cached blocks of earlier sequences.
    pub prefix_caching: bool,
    /// Namespace of the pool: see [`ManagerConfig::namespace`].
    pub namespace: String,
    /// Stream on which changes of the prefix cache are published.
    pub events: Option<EventStream>,
}

impl PagedOptions {
    /// Options for `slots` sequences of `max_len` tokens in blocks of `block_size`, with one spare block (a
    /// rollback into a shared block continues in a copy), and steps of up to 512 tokens. Prefix caching is
    /// on.
    pub fn new(slots: usize, max_len: usize, block_size: usize, dtype: DType) -> Self {
        let each = max_len.div_ceil(block_size.max(1));
        Self {
            num_blocks: each.saturating_mul(slots).saturating_add(2),
            block_size,
            dtype,
            slots,
            max_len,
            max_step_tokens: 512.max(slots),
            prefix_caching: true,
            namespace: String::new(),
            events: None,
        }
    }
}

/// State of sequences whose keys and values are stored in blocks of one pool.
///
/// ```
/// # use std::path::Path;
/// use l1_tensor::{Runtime, RuntimeOptions};
/// use l2_model::{GenerateOptions, Model, Session, generate::generate};
/// use l3_paged_kv::{PagedOptions, PagedState};
///
/// # let path = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../fixtures/tiny-llama"));
/// let rt = Runtime::new(RuntimeOptions::cpu())?;
/// let model = Model::load(path, &rt)?;
/// let prompt = model.tokenizer.encode("The sea", true)?;
/// let max_len = prompt.len() + 4;
/// // One slot, blocks of 16 tokens.
/// let options = PagedOptions::new(1, max_len, 16, rt.activation_dtype());
/// let state = PagedState::new(model.decoder.config(), options)?;
/// let mut session = Session::with_state(&model.decoder, &rt, Box::new(state), max_len)?;
/// let options = GenerateOptions { max_tokens: 4, stop_tokens: &[], ignore_eos: true };
/// let paged = generate(&mut session, &prompt, &options, |_token| true)?;
/// // Blocks change where keys and values lie, not the output.
/// let mut session = Session::new(&model.decoder, &rt, max_len)?;
/// let contiguous = generate(&mut session, &prompt, &options, |_token| true)?;
/// assert_eq!(paged.tokens, contiguous.tokens);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct PagedState {
    manager: BlockManager,
    kv: PagedKv,
    meta: ForwardMeta,
    slots: Vec<Slot>,
    max_len: usize,
    max_step_tokens: usize,
    /// Last step of each slot, and the number of the last step that was tried.
    last_step: Vec<u64>,
    step: u64,
    /// Slots of the open step.
    taking_part: Vec<usize>,
}

/// A slot, which holds a sequence or is empty.
struct Slot {
    /// Handle of its sequence; `None` while the slot is empty.
    seq: Option<SeqId>,
    /// Tokens of the sequence, those of an open step included.
    chain: TokenChain,
    /// Number of tokens that are stored and committed.
    len: usize,
}

impl PagedState {
    /// Creates the pool and allocates its memory.
    ///
    /// # Errors
    /// [`KvError::BadConfig`] for a block size that is not a power of two or an invalid number of blocks;
    /// [`KvError::Tensor`] for another dtype, or if memory is exhausted.
    pub fn new(config: &ModelConfig, options: PagedOptions) -> Result<Self> {
        Self::new_on(Device::Cpu, config, options)
    }

    /// Creates the state in the memory of `device`, for a runtime on that device.
    ///
    /// # Errors
    /// As [`PagedState::new`]; [`KvError::Tensor`] for a dtype that the device's kernels do not read.
    pub fn new_on(device: Device, config: &ModelConfig, options: PagedOptions) -> Result<Self> {
        let PagedOptions { num_blocks, block_size, slots, max_len, .. } = options;
        let max_blocks = max_len.div_ceil(block_size.max(1));
        let manager = BlockManager::new(ManagerConfig {
            prefix_caching: options.prefix_caching,
            namespace: options.namespace,
            max_blocks_per_seq: max_blocks,
            events: options.events,
            ..ManagerConfig::new(num_blocks, block_size)
        })?;
        let kv = PagedKv::new_on(device, config, num_blocks, block_size, options.dtype)?;
        let hasher = BlockHasher::new(block_size);
        let chain = || TokenChain::with_capacity(&hasher, ExtraKeys::default(), max_len);
        let slot = |_| Slot { seq: None, chain: chain(), len: 0 };
        Ok(Self {
            manager,
            kv,
            meta: ForwardMeta::new(options.max_step_tokens, slots, max_blocks, block_size),
            slots: (0..slots).map(slot).collect(),
            max_len,
            max_step_tokens: options.max_step_tokens,
            last_step: vec![0; slots],
            step: 0,
            taking_part: Vec::with_capacity(slots),
        })
    }

    /// Maximum number of tokens of a sequence.
    pub fn max_len(&self) -> usize {
        self.max_len
    }

    /// The block manager.
    pub fn manager(&self) -> &BlockManager {
        &self.manager
    }

    /// Keys and values of all blocks.
    pub fn kv(&self) -> &PagedKv {
        &self.kv
    }

    /// Sets the observer of all block operations: see [`BlockManager::set_observer`].
    ///
    /// # Errors
    /// [`KvError::BadConfig`] if the pool has been used already.
    pub fn set_observer(&mut self, observer: Option<Box<dyn BlockObserver>>) -> Result<()> {
        self.manager.set_observer(observer)
    }

    /// Removes and returns the observer, to finish its recording.
    pub fn take_observer(&mut self) -> Option<Box<dyn BlockObserver>> {
        self.manager.take_observer()
    }

    fn slot(&self, slot: u32) -> l2_model::Result<usize> {
        let (slot, slots) = (slot as usize, self.slots.len());
        if slot < slots {
            return Ok(slot);
        }
        Err(BatchError::Malformed(format!("state slot {slot}, but there are {slots}")).into())
    }

    /// Checks a step: it must fit, and its positions must continue the sequences. Does not change any sequence.
    fn check(&mut self, batch: &Batch) -> l2_model::Result<()> {
        let malformed = |why| Err(BatchError::Malformed(why).into());
        let (tokens, max) = (batch.tokens.len(), self.max_step_tokens);
        if tokens > max {
            return Err(BatchError::TooManyTokens { tokens, max }.into());
        }
        self.step += 1;
        for (s, slot) in batch.state_slots.iter().enumerate() {
            let slot = self.slot(*slot)?;
            if std::mem::replace(&mut self.last_step[slot], self.step) == self.step {
                return malformed(format!("state slot {slot} takes part twice in one step"));
            }
            let positions = &batch.positions[span(batch, s)];
            let len = self.slots[slot].len;
            let end = len + positions.len();
            if end > self.max_len {
                return Err(BatchError::TooLong { len: end, capacity: self.max_len }.into());
            }
            if let Some(i) = (0..positions.len()).find(|i| positions[*i] as usize != len + i) {
                return malformed(format!(
                    "sequence {s} has {len} tokens, so its token {i} is at position {}, not {}",
                    len + i,
                    positions[i]
                ));
            }
        }
        Ok(())
    }

    /// Checks that the free blocks suffice for the whole step. Takes none, so that a step that does not fit evicts no
    /// cached block.
    fn check_room(&self, batch: &Batch) -> Result<()> {
        // exercise l3.state
        let mut needed = 0;
        for (s, slot) in batch.state_slots.iter().enumerate() {
            let Slot { seq, len, .. } = &self.slots[*slot as usize];
            let end = len + span(batch, s).len();
            needed += match *seq {
                Some(id) => self.manager.table(id)?.missing(end),
                None => end.div_ceil(self.kv.block_size()),
            };
        }
        let free = self.manager.num_free();
        if needed > free {
            return Err(KvError::NoFreeBlocks { needed, free });
        }
        Ok(())
        // end of exercise
    }

    /// Adds a sequence with these tokens to the step: reserves blocks for them, registers the hashes of the blocks that
    /// they fill, and adds a row to the step's arrays.
    fn enter(&mut self, slot: usize, tokens: &[u32]) -> Result<()> {
        self.taking_part.push(slot);
        // exercise l3.state
        let Slot { seq, chain, len } = &mut self.slots[slot];
        chain.extend(tokens);
        let end = chain.len();
        let id = match *seq {
            Some(id) => {
                self.manager.reserve(id, end)?;
                id
            }
            None => {
                let want = Admission { up_to_len: end, ..Admission::default() };
                *seq.insert(self.manager.admit(chain, &PrefixHit::default(), want)?)
            }
        };
        self.manager.register(id, chain, end)?;
        self.meta.push(self.manager.table(id)?, *len, tokens.len())
        // end of exercise
    }

    /// Undoes a step that began and was not committed.
    fn undo(&mut self) {
        if self.taking_part.is_empty() {
            return;
        }
        // exercise l3.state
        let gone = self.manager.abandon_step();
        while let Some(slot) = self.taking_part.pop() {
            let Slot { seq, chain, len } = &mut self.slots[slot];
            chain.truncate(*len);
            if seq.is_some_and(|id| gone.contains(&id)) {
                *seq = None;
            }
            self.clear_behind(slot);
        }
        // end of exercise
    }

    /// Frees a slot's sequence.
    fn vacate(&mut self, slot: usize) {
        let slot = &mut self.slots[slot];
        // exercise l3.state
        if let Some(seq) = slot.seq.take() {
            let freed = self.manager.free(seq);
            debug_assert!(freed.is_ok_and(|others| others.is_empty()));
        }
        slot.chain.truncate(0);
        slot.len = 0;
        // end of exercise
    }

    /// Clears the slots behind a sequence's last token in its last block.
    fn clear_behind(&mut self, slot: usize) {
        let Slot { seq, len, .. } = &self.slots[slot];
        let (whole, left) = (len / self.kv.block_size(), len % self.kv.block_size());
        let table = seq.and_then(|id| self.manager.table(id).ok());
        if let Some(block) = table.and_then(|t| t.blocks().get(whole)).filter(|_| left > 0) {
            let cleared = self.kv.clear(*block, left);
            debug_assert!(cleared.is_ok(), "{cleared:?}");
        }
    }
}

/// Tokens of the `s`-th sequence of a batch.
fn span(batch: &Batch, s: usize) -> std::ops::Range<usize> {
    batch.cu_seqlens_q[s] as usize..batch.cu_seqlens_q[s + 1] as usize
}

impl SequenceState for PagedState {
    /// # Errors
    /// As for the trait; [`BatchError::Full`] when the pool has too few free blocks for the whole step. Then no block
    /// is taken.
    fn begin(&mut self, batch: &Batch) -> l2_model::Result<()> {
        self.undo();
        self.check(batch)?;
        self.check_room(batch)?;
        self.meta.clear();
        for (s, slot) in batch.state_slots.iter().enumerate() {
            if let Err(e) = self.enter(*slot as usize, &batch.tokens[span(batch, s)]) {
                self.undo();
                return Err(e.into());
            }
        }
        Ok(())
    }

    fn stage(&mut self, rt: &Runtime, _batch: &Batch) -> l2_model::Result<()> {
        Ok(self.kv.stage(rt, &self.meta, false)?)
    }

    fn resume(&mut self, slot: u32, tokens: &[u32]) -> usize {
        self.undo();
        let Ok(slot) = self.slot(slot) else { return 0 };
        let Slot { seq: seq @ None, chain, len } = &mut self.slots[slot] else { return 0 };
        // exercise l3.state
        chain.extend(&tokens[..tokens.len().min(self.max_len)]);
        let hit = self.manager.lookup(chain);
        if hit.tokens > 0 {
            let want = Admission { up_to_len: hit.tokens, ..Admission::default() };
            *seq = self.manager.admit(chain, &hit, want).ok();
            // Nothing has to be computed for these blocks: the sequence has them for certain.
            self.manager.commit_step();
        }
        *len = if seq.is_some() { hit.tokens } else { 0 };
        chain.truncate(*len);
        *len
        // end of exercise
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
        Ok(self.kv.attend(rt, layer, &self.meta, q, k, v, params, scratch, out)?)
    }

    fn commit(&mut self, _batch: &Batch) {
        // exercise l3.state
        for slot in self.taking_part.drain(..) {
            let Slot { seq, chain, len } = &mut self.slots[slot];
            if let Some(seq) = *seq {
                self.manager.note(&BlockOp::Wrote { seq, from: *len, to: chain.len() });
            }
            *len = chain.len();
        }
        self.manager.commit_step();
        // end of exercise
    }

    fn len(&self, slot: u32) -> usize {
        self.slots.get(slot as usize).map_or(0, |s| s.len)
    }

    fn snapshot(&self, slot: u32) -> l2_model::Result<Snapshot> {
        self.take_snapshot(self.slot(slot)?)
    }

    /// # Errors
    /// As for the trait; [`BatchError::Full`] when the free blocks, and the unshared ones of the slot's sequence, do
    /// not suffice. Then the slot does not change.
    fn restore(&mut self, slot: u32, snapshot: &Snapshot) -> l2_model::Result<()> {
        self.undo();
        self.put_snapshot(self.slot(slot)?, snapshot)
    }

    /// # Errors
    /// As for the trait; [`BatchError::Full`] when `len` is in the middle of a block that is shared or cached and no
    /// block is free for a private copy. Then the sequence does not change.
    fn rollback(&mut self, slot: u32, len: usize) -> l2_model::Result<()> {
        let slot = self.slot(slot)?;
        self.undo();
        let have = self.slots[slot].len;
        if len > have {
            let why = format!("cannot roll a sequence of {have} tokens back to {len}");
            return Err(BatchError::Malformed(why).into());
        }
        let Some(seq) = self.slots[slot].seq else { return Ok(()) };
        // exercise l3.state
        if len == 0 {
            self.vacate(slot);
            return Ok(());
        }
        let copy = self.manager.rollback(seq, len)?;
        self.slots[slot].chain.truncate(len);
        self.slots[slot].len = len;
        match copy {
            Some(copy) => {
                self.kv.copy(copy)?;
                let (from, to, tokens) = (copy.from, copy.to, copy.tokens);
                self.manager.note(&BlockOp::Copied { from, to, tokens });
            }
            None => self.clear_behind(slot),
        }
        self.manager.commit_step();
        Ok(())
        // end of exercise
    }

    fn drop_sequence(&mut self, slot: u32) {
        self.undo();
        if let Ok(slot) = self.slot(slot) {
            self.vacate(slot);
        }
    }

    /// Bytes of the blocks in a sequence's table, shared ones in full.
    fn bytes(&self, slot: u32) -> usize {
        let seq = self.slots.get(slot as usize).and_then(|s| s.seq);
        let table = seq.and_then(|id| self.manager.table(id).ok());
        table.map_or(0, |t| t.blocks().len() * self.kv.block_bytes())
    }
}
