//! Cutting a step into work items for threads.
//!
//! The cut may depend on the number of threads and the amount of work: no row's arithmetic depends
//! on its neighbours, and splits are merged in one order.

use super::splits::SPLIT;
use super::{Job, MAX_ROWS, splits_seen};

/// A work item: some queries of a sequence, some heads of one group.
#[derive(Clone, Copy)]
pub(crate) struct Item {
    pub(super) seq: u32,
    /// First query within the sequence, and number of queries.
    pub(super) first: u32,
    pub(super) queries: u32,
    /// First query head and number of heads; all share a KV head.
    pub(super) head: u32,
    pub(super) heads: u32,
    /// First row of its partial results, when threads share its splits.
    pub(super) partials: u32,
}

impl Item {
    pub(super) fn rows(&self) -> usize {
        (self.heads * self.queries) as usize
    }
}

/// One split of an item.
#[derive(Clone, Copy)]
pub(crate) struct Piece {
    pub(super) item: u32,
    pub(super) split: u32,
}

/// The work of a step. If there are pieces, threads run the pieces, and items are merged from them.
pub(crate) struct Agenda {
    pub(super) items: Vec<Item>,
    pub(super) pieces: Vec<Piece>,
    /// Number of rows for which partial results have room.
    partials: usize,
}

/// Maximum number of tokens for which long contexts are cut into splits for several threads. More
/// tokens make enough items.
const SHARED_TOKENS: usize = 8;

impl Agenda {
    /// Room for steps of at most `max_tokens` queries over `max_kv` keys by `threads` threads.
    pub(crate) fn new(max_tokens: usize, max_kv: usize, q_heads: usize, threads: usize) -> Self {
        let splits = max_kv.div_ceil(SPLIT);
        // A single thread takes splits in turn and needs no room for partial results of others.
        let tokens = if threads > 1 && splits > 1 { max_tokens.min(SHARED_TOKENS) } else { 0 };
        let partials = tokens * q_heads * splits;
        let items = Vec::with_capacity((max_tokens * q_heads).max(1));
        Self { items, pieces: Vec::with_capacity(partials), partials }
    }

    pub(crate) fn partials(&self) -> usize {
        self.partials
    }

    pub(crate) fn bytes(&self) -> usize {
        self.items.capacity() * size_of::<Item>() + self.pieces.capacity() * size_of::<Piece>()
    }

    /// Cuts the batch, long items first within a sequence so that threads end together.
    pub(super) fn list(&mut self, job: &Job, threads: usize) {
        let group = job.q_heads / job.kv_heads;
        let s = &job.sequences;
        let tokens = s.cu_seqlens_q[s.seq_lens_kv.len()] as usize;
        let together = group.min(MAX_ROWS);
        self.items.clear();
        self.pieces.clear();
        self.cut(job, together);
        if threads == 1 || tokens * job.kv_heads >= 4 * threads {
            return;
        }
        // There are too few items to keep all threads busy. A group shares its keys, so cut along
        // the keys rather than between its heads.
        if !self.cut_splits(job) {
            self.items.clear();
            self.pieces.clear();
            self.cut(job, 1);
        }
    }

    fn cut(&mut self, job: &Job, per_item: usize) {
        let group = job.q_heads / job.kv_heads;
        let per_tile = (MAX_ROWS / per_item).max(1) as u32;
        let s = &job.sequences;
        for seq in 0..s.seq_lens_kv.len() {
            let q_len = (s.cu_seqlens_q[seq + 1] - s.cu_seqlens_q[seq]) as u32;
            for tile in (0..q_len.div_ceil(per_tile)).rev() {
                let first = tile * per_tile;
                let queries = per_tile.min(q_len - first);
                for kv_head in 0..job.kv_heads {
                    for g in (0..group).step_by(per_item) {
                        let heads = per_item.min(group - g) as u32;
                        let head = (kv_head * group + g) as u32;
                        let seq = seq as u32;
                        self.items.push(Item { seq, first, queries, head, heads, partials: 0 });
                    }
                }
            }
        }
    }

    /// Cuts the items into splits, if there are long contexts among them and there is room.
    fn cut_splits(&mut self, job: &Job) -> bool {
        let mut partials = 0;
        for (i, item) in self.items.iter_mut().enumerate() {
            item.partials = partials as u32;
            let splits = splits_seen(job, item);
            partials += item.rows() * splits.len();
            if partials > self.partials {
                return false;
            }
            self.pieces.extend(splits.map(|split| Piece { item: i as u32, split: split as u32 }));
        }
        self.pieces.len() > self.items.len()
    }
}
