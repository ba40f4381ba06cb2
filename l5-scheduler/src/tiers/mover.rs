//! The runner's half: moves chunks between the tiers and the blocks of the pool.

use std::collections::{HashMap, VecDeque};
use std::sync::Once;
use std::time::{Duration, Instant};

use l1_tensor::{Device, HostBuffer};
use l3_paged_kv::tier::{ChunkBytes, ChunkKey, ChunkLayout, Ticket, TierCompletion, TierOutcome};
use l3_paged_kv::{BlockHash, BlockId, PagedKv};

use super::{GROUP, LoadedTokens, MAX_BYTES_PER_POLL, MAX_WRITE_BACK_BYTES, State, Tiers};
use crate::{KvCompletion, LeaseId, RequestId, StepOp, StepPlan};

/// Weight of the newest measurement of a load.
const LOAD_WEIGHT: f64 = 0.2;

/// Loads and stores that steps have begun.
pub(crate) struct TierMover {
    tiers: Tiers,
    loads: Vec<Load>,
    stores: VecDeque<Store>,
    /// The load and the chunk that a ticket is for.
    tickets: HashMap<Ticket, (RequestId, usize)>,
    /// Operations of the tier that have ended. Empty between two polls.
    ended: Vec<TierCompletion>,
}

struct Load {
    step: u64,
    id: RequestId,
    /// Tokens that are in the blocks already: those of the pool, and those that were written.
    loaded: usize,
    /// Token of the request at which `blocks` begin.
    from: usize,
    blocks: Vec<BlockId>,
    /// Chunks that are not written yet, the first of which is chunk `next` of the request.
    chunks: VecDeque<Chunk>,
    next: usize,
    began: Instant,
    /// Tokens that were written, by the memory that had them.
    sources: LoadedTokens,
}

enum Chunk {
    Pending,
    /// The tier of this name had it.
    Here(ChunkBytes, &'static str),
    /// It is lost, and all chunks behind it are of no use.
    Lost,
}

struct Store {
    step: u64,
    lease: LeaseId,
    blocks: Vec<BlockId>,
    keys: Vec<ChunkKey>,
    /// Number of chunks that were given to the tier, or that it had.
    done: usize,
}

impl TierMover {
    pub(crate) fn new(tiers: Tiers) -> Self {
        Self {
            tiers,
            loads: Vec::new(),
            stores: VecDeque::new(),
            tickets: HashMap::new(),
            ended: Vec::new(),
        }
    }

    pub(crate) fn tiers(&self) -> &Tiers {
        &self.tiers
    }

    /// Begins the operations of a step. The bytes of loads and stores are moved by [`TierMover::poll`], those of blocks
    /// that this step may overwrite at once.
    pub(crate) fn begin(&mut self, step: &StepPlan, kv: &PagedKv) {
        if step.ops.is_empty() {
            return;
        }
        let tiers = self.tiers.clone();
        let mut state = tiers.lock();
        let mut left = MAX_WRITE_BACK_BYTES;
        for op in &step.ops {
            if let StepOp::WriteBack { blocks, hashes, keep_until } = op {
                state.write_back(kv, blocks, hashes, *keep_until - step.now, &mut left);
            }
        }
        let State { tier, layout, space, keys, .. } = &mut *state;
        for op in &step.ops {
            match op {
                StepOp::Load { id, from, to, blocks, .. } => {
                    let keys = keys.get(id).map_or(&[][..], Vec::as_slice);
                    let (first, end) = (from / layout.tokens(), to.div_ceil(layout.tokens()));
                    let chunks = (first..end).map(|chunk| {
                        let Some(key) = keys.get(chunk) else { return Chunk::Lost };
                        self.tickets.insert(tier.get(key), (*id, chunk));
                        Chunk::Pending
                    });
                    self.loads.push(Load {
                        step: step.number,
                        id: *id,
                        loaded: *from,
                        from: *from,
                        blocks: blocks.clone(),
                        chunks: chunks.collect(),
                        next: first,
                        began: Instant::now(),
                        sources: LoadedTokens::default(),
                    });
                }
                StepOp::Store { lease, blocks, hashes, .. } => self.stores.push_back(Store {
                    step: step.number,
                    lease: *lease,
                    blocks: blocks.clone(),
                    keys: layout.keys(space, GROUP, hashes),
                    done: 0,
                }),
                StepOp::WriteBack { .. } => {}
            }
        }
    }

    /// Forgets what a step has begun that was abandoned: it is planned again, or its requests have failed.
    pub(crate) fn abandon(&mut self, step: u64) {
        self.loads.retain(|load| load.step != step);
        self.forget_tickets();
        self.stores.retain(|store| store.step != step);
    }

    /// Forgets the tickets of loads that are gone. Their chunks may still arrive.
    fn forget_tickets(&mut self) {
        let Self { loads, tickets, .. } = self;
        tickets.retain(|_, (id, _)| loads.iter().any(|load| load.id == *id));
    }

    /// Forgets the keys of a request that has ended.
    pub(crate) fn end(&mut self, id: RequestId) {
        let mut state = self.tiers.lock();
        state.keys.remove(&id);
        state.loaded.remove(&id);
    }

    /// Moves bytes, and reports the loads and stores that have ended.
    pub(crate) fn poll(&mut self, kv: &mut PagedKv, completed: &mut Vec<KvCompletion>) {
        let tiers = self.tiers.clone();
        let mut state = tiers.lock();
        state.chunk_bytes = kv.chunk_bytes(state.layout.blocks());
        state.tier.poll(&mut self.ended);
        for TierCompletion { ticket, outcome } in self.ended.drain(..) {
            // No request waits for a put.
            let Some((id, chunk)) = self.tickets.remove(&ticket) else { continue };
            let load = self.loads.iter_mut().find(|load| load.id == id);
            let Some(load) = load.filter(|load| load.next <= chunk) else { continue };
            if let Some(slot) = load.chunks.get_mut(chunk - load.next) {
                *slot = match outcome {
                    TierOutcome::Hit(bytes) => Chunk::Here(bytes, state.tier.source(ticket)),
                    _ => Chunk::Lost,
                };
            }
        }
        let (mut left, loads) = (MAX_BYTES_PER_POLL, self.loads.len());
        self.loads.retain_mut(|load| {
            let before = load.loaded;
            let ended = load.write(kv, state.layout, &mut left);
            state.stats.loaded += (load.loaded - before) as u64;
            if ended {
                state.note_load(load);
                state.loaded.insert(load.id, load.sources);
                completed.push(KvCompletion::Loaded { id: load.id, tokens: load.loaded });
            }
            !ended
        });
        if self.loads.len() < loads {
            self.forget_tickets();
        }
        while left > 0
            && let Some(store) = self.stores.front_mut()
        {
            if !store.read(kv, &mut state, &mut left) {
                break;
            }
            completed.push(KvCompletion::Stored { lease: store.lease });
            self.stores.pop_front();
        }
    }
}

impl State {
    /// Puts the chunks of blocks that are about to be overwritten into the tier, which keeps them for so many seconds,
    /// while bytes are `left`.
    fn write_back(
        &mut self,
        kv: &PagedKv,
        blocks: &[BlockId],
        hashes: &[BlockHash],
        keep: f64,
        left: &mut usize,
    ) {
        let keep = Duration::try_from_secs_f64(keep).unwrap_or_default();
        let Self { tier, layout, space, stats, .. } = self;
        let keys = layout.keys(space, GROUP, hashes);
        for (key, blocks) in keys.iter().zip(blocks.chunks_exact(layout.blocks())) {
            if tier.needs(key) {
                let len = kv.chunk_bytes(blocks.len());
                if len > *left {
                    return;
                }
                let mut bytes = chunk_buffer(kv, len);
                if let Err(why) = kv.read_chunk(blocks, &mut bytes) {
                    tracing::warn!("tiers: a chunk cannot be read, and is not written back: {why}");
                    return;
                }
                *left -= len;
                tier.put(key, bytes.into());
                stats.stored += layout.tokens() as u64;
                stats.written_back += layout.tokens() as u64;
            }
            if !keep.is_zero() {
                tier.protect(key, keep);
            }
        }
    }

    /// Measures a load that has ended.
    fn note_load(&mut self, load: &Load) {
        let blocks = (load.loaded - load.from) / self.layout.block_size();
        if blocks > 0 {
            let seconds = load.began.elapsed().as_secs_f64() / blocks as f64;
            let before = self.load_seconds_per_block.unwrap_or(seconds);
            self.load_seconds_per_block = Some(before + LOAD_WEIGHT * (seconds - before));
        }
    }
}

impl Load {
    /// Writes the chunks that are here, in order, while bytes are `left`. Returns whether the load has ended.
    fn write(&mut self, kv: &mut PagedKv, layout: ChunkLayout, left: &mut usize) -> bool {
        let size = layout.block_size();
        while *left > 0 {
            match self.chunks.front() {
                None | Some(Chunk::Lost) => return true,
                Some(Chunk::Pending) => return false,
                Some(Chunk::Here(bytes, tier)) => {
                    let begin = self.next * layout.blocks();
                    let offset = self.loaded / size - begin;
                    let at = (self.loaded - self.from) / size;
                    let count = (layout.blocks() - offset).min(self.blocks.len() - at);
                    let blocks = &self.blocks[at..at + count];
                    if let Err(why) = kv.write_chunk(blocks, offset, layout.blocks(), bytes) {
                        tracing::warn!("tiers: a chunk cannot be written, and is computed: {why}");
                        return true;
                    }
                    *left = left.saturating_sub(bytes.len());
                    self.loaded += count * size;
                    self.sources.add(tier, count * size);
                    self.next += 1;
                    self.chunks.pop_front();
                }
            }
        }
        self.chunks.is_empty()
    }
}

impl Store {
    /// Reads chunks that the tier does not have, while bytes are `left`. Returns whether all were read: the tier has
    /// copies, so the blocks are not needed any more.
    fn read(&mut self, kv: &PagedKv, state: &mut State, left: &mut usize) -> bool {
        let chunk = state.layout.blocks();
        while let Some(key) = self.keys.get(self.done) {
            if *left == 0 {
                return false;
            }
            if state.tier.needs(key) {
                let blocks = &self.blocks[self.done * chunk..][..chunk];
                let mut bytes = chunk_buffer(kv, kv.chunk_bytes(chunk));
                if let Err(why) = kv.read_chunk(blocks, &mut bytes) {
                    tracing::warn!("tiers: a chunk cannot be read, and is not stored: {why}");
                    return true;
                }
                *left = left.saturating_sub(bytes.len());
                state.tier.put(key, bytes.into());
                state.stats.stored += state.layout.tokens() as u64;
            }
            self.done += 1;
        }
        true
    }
}

/// Memory for a chunk that is read.
fn chunk_buffer(kv: &PagedKv, len: usize) -> HostBuffer {
    static WARNED: Once = Once::new();
    let buffer = kv.host_buffer(len);
    if kv.device() != Device::Cpu && !buffer.is_pinned() {
        WARNED.call_once(|| {
            tracing::warn!(
                "tiers: the system pins no more memory, and copies are slower: lower the size of the DRAM tier"
            );
        });
    }
    buffer
}
