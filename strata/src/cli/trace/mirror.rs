//! The twin of `viewer/replay.js`: applies deltas, and sums up where that led.

use std::collections::BTreeMap;

use l3_paged_kv::BlockId;

use super::page::Delta;

/// The state that a page shows.
///
/// The free list is kept as places. A block that never moved has its own number for a place; what goes to the front
/// gets a place below all others, what goes to the back one above: the list in order is the blocks sorted by place.
#[derive(Debug, Default)]
pub struct Mirror {
    blocks: BTreeMap<BlockId, Shown>,
    tables: BTreeMap<usize, (Vec<BlockId>, usize)>,
    low: i64,
    high: i64,
}

#[derive(Clone, Copy, Debug)]
struct Shown {
    /// `None`: not in the free list.
    place: Option<i64>,
    users: u32,
    hash: Option<Option<usize>>,
    pending: bool,
}

/// Beyond every block's own number.
const FIRST_AT_THE_BACK: i64 = 1 << 32;

impl Mirror {
    /// Applies the deltas of one frame.
    pub fn apply(&mut self, deltas: &[Delta]) {
        for delta in deltas {
            match *delta {
                Delta::Leave(block) => self.block(block).place = None,
                Delta::Front(block) => {
                    self.low -= 1;
                    self.block(block).place = Some(self.low);
                }
                Delta::Back(block) => {
                    self.high += 1;
                    self.block(block).place = Some(FIRST_AT_THE_BACK + self.high);
                }
                Delta::Users(block, users) => self.block(block).users = users,
                Delta::Hash(block, hash, pending) => {
                    let shown = self.block(block);
                    (shown.hash, shown.pending) = (Some(hash), pending);
                }
                Delta::Unhash(block) => unhash(self.block(block)),
                Delta::UnhashAll => self.blocks.values_mut().for_each(unhash),
                Delta::Settle => self.blocks.values_mut().for_each(|b| b.pending = false),
                Delta::Begin(seq) => {
                    self.tables.insert(seq, Default::default());
                }
                Delta::End(seq) => {
                    self.tables.remove(&seq);
                }
                Delta::Append(seq, block) => self.tables.entry(seq).or_default().0.push(block),
                Delta::Truncate(seq, blocks) => {
                    self.tables.entry(seq).or_default().0.truncate(blocks);
                }
                Delta::Stored(seq, tokens) => self.tables.entry(seq).or_default().1 = tokens,
            }
        }
    }

    fn block(&mut self, block: BlockId) -> &mut Shown {
        let unmoved = Shown { place: Some(i64::from(block)), users: 0, hash: None, pending: false };
        self.blocks.entry(block).or_insert(unmoved)
    }

    /// The blocks of the free list that moved at least once, in order.
    fn moved(&self) -> Vec<BlockId> {
        let mut places: Vec<_> = self
            .blocks
            .iter()
            .filter_map(|(block, shown)| Some((shown.place?, *block)))
            .filter(|(place, block)| *place != i64::from(*block))
            .collect();
        places.sort_unstable();
        places.into_iter().map(|(_, block)| block).collect()
    }

    /// A number that depends on all of the state (FNV-1a over words).
    pub fn digest(&self) -> u32 {
        let mut sum = Fnv(0x811c_9dc5);
        let known = self.blocks.iter().filter(|(_, b)| b.users > 0 || b.hash.is_some());
        for (block, shown) in known {
            sum.add(*block);
            sum.add(shown.users);
            sum.add(shown.hash.map_or(0, |h| h.map_or(1, |h| h as u32 + 2)));
            sum.add(u32::from(shown.pending));
        }
        for block in self.moved() {
            sum.add(block);
        }
        for (seq, (blocks, stored)) in &self.tables {
            sum.add(*seq as u32);
            sum.add(*stored as u32);
            blocks.iter().for_each(|block| sum.add(*block));
        }
        sum.0
    }

    /// The free list of a pool of this size.
    #[cfg(test)]
    pub fn free(&self, num_blocks: usize) -> Vec<BlockId> {
        let place = |block: &BlockId| match self.blocks.get(block) {
            Some(shown) => Some((shown.place?, *block)),
            None => Some((i64::from(*block), *block)),
        };
        let mut places: Vec<_> = (1..num_blocks as BlockId).filter_map(|b| place(&b)).collect();
        places.sort_unstable();
        places.into_iter().map(|(_, block)| block).collect()
    }

    /// A block's users; whether it has a hash, and which; whether that is pending.
    #[cfg(test)]
    pub fn shown(&self, block: BlockId) -> (u32, Option<Option<usize>>, bool) {
        self.blocks.get(&block).map_or((0, None, false), |b| (b.users, b.hash, b.pending))
    }

    /// Tables and the tokens stored, by sequence.
    #[cfg(test)]
    pub fn tables(&self) -> &BTreeMap<usize, (Vec<BlockId>, usize)> {
        &self.tables
    }
}

fn unhash(block: &mut Shown) {
    (block.hash, block.pending) = (None, false);
}

struct Fnv(u32);

impl Fnv {
    fn add(&mut self, word: u32) {
        self.0 = (self.0 ^ word).wrapping_mul(0x0100_0193);
    }
}
