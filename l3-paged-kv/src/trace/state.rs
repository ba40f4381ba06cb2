//! State of pool, hashes and tables, as it follows from a recording.

use std::collections::{BTreeMap, BTreeSet};

use super::op::BlockOp;
use crate::{BlockHash, BlockId, NULL_BLOCK, SeqId};

/// State of pool, cache and tables at one moment of a recording.
///
/// It implements the ops and none of the pool's rules, such as which block is evicted. So it finds contradictions in a
/// recording, and tests can compare it with the manager that was recorded.
///
/// Memory is allocated only for blocks that an op has named, because the number of blocks in the file may be wrong.
#[derive(Clone, Debug)]
pub struct PoolState {
    num_blocks: usize,
    block_size: usize,
    namespace: String,
    /// Blocks that an op has named. All others are free, without a hash, in the order of their ids.
    blocks: BTreeMap<BlockId, Block>,
    /// Lowest id of a block that may be unnamed.
    unnamed: BlockId,
    /// Named free blocks by position: blocks pushed to the front have negative positions, the latest the lowest; blocks
    /// pushed to the back have positive ones.
    places: BTreeMap<i64, BlockId>,
    tables: BTreeMap<SeqId, TableState>,
    /// Sequence that ended last: an op may still truncate its table.
    ended: Option<SeqId>,
    pending: BTreeSet<BlockId>,
    steps: u64,
    step_is_open: bool,
}

#[derive(Clone, Debug, Default)]
struct Block {
    users: u32,
    place: Option<i64>,
    hashed: Option<Hashed>,
}

/// A block's entry in the prefix cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hashed {
    /// Hash of the block's contents.
    pub hash: BlockHash,
    /// The hash of the block before it.
    pub parent: Option<BlockHash>,
    /// Whether the open step has yet to compute the contents.
    pub pending: bool,
}

/// A sequence.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TableState {
    /// Name of the sequence, for a reader.
    pub label: String,
    /// Block table.
    pub blocks: Vec<BlockId>,
    /// Number of tokens whose keys and values are stored, including those that were hit in the cache.
    pub stored: usize,
}

/// Why an op cannot follow the ops before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)] // The messages say it.
pub enum Contradiction {
    #[error("the pool has blocks 0 to {}, not {block}", num_blocks - 1)]
    UnknownBlock { block: BlockId, num_blocks: usize },
    #[error("block 0 is the null block, which nothing happens to")]
    NullBlock,
    #[error("a pool has 2 to {} blocks of 1 token or more", i32::MAX)]
    NoSuchPool,
    #[error("the pool was made in the first line")]
    SecondPool,
    #[error("block {block} is popped, but {} is at the front of the free list", Front(*front))]
    NotAtFront { block: BlockId, front: Option<BlockId> },
    #[error("block {block} was never taken from the free list")]
    NeverTaken { block: BlockId },
    #[error("block {block} leaves the free list and is not in it")]
    NotFree { block: BlockId },
    #[error("block {block} enters the free list and is in it already")]
    AlreadyFree { block: BlockId },
    #[error("block {block} is in the free list and has {users} users")]
    FreeAndUsed { block: BlockId, users: u32 },
    #[error("block {block} is neither used nor in the free list: it is lost")]
    Lost { block: BlockId },
    #[error("block {block} has a hash already")]
    AlreadyHashed { block: BlockId },
    #[error("block {block} loses a hash which it does not have")]
    NotHashed { block: BlockId },
    #[error("{seq} began before and did not end")]
    AlreadyThere { seq: SeqId },
    #[error("{seq} did not begin, or has ended")]
    UnknownSequence { seq: SeqId },
    #[error("{seq} keeps {keeps} blocks of {has}")]
    Truncated { seq: SeqId, keeps: usize, has: usize },
    #[error("tokens {from}..{to} of {seq} are written, and its table has room for {capacity}")]
    Written { seq: SeqId, from: usize, to: usize, capacity: usize },
    #[error("a step begins inside of a step")]
    StepIsOpen,
    #[error("a step ends that did not begin")]
    NoStep,
}

struct Front(Option<BlockId>);

impl std::fmt::Display for Front {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            Some(block) => write!(f, "block {block}"),
            None => f.write_str("nothing"),
        }
    }
}

impl PoolState {
    /// Creates the state of a new pool: all blocks are free, and none has a hash.
    ///
    /// # Errors
    /// [`Contradiction::NoSuchPool`].
    pub fn new(
        num_blocks: usize,
        block_size: usize,
        namespace: &str,
    ) -> Result<Self, Contradiction> {
        if !(2..=i32::MAX as usize).contains(&num_blocks) || block_size == 0 {
            return Err(Contradiction::NoSuchPool);
        }
        Ok(Self {
            num_blocks,
            block_size,
            namespace: namespace.to_owned(),
            blocks: BTreeMap::new(),
            unnamed: 1,
            places: BTreeMap::new(),
            tables: BTreeMap::new(),
            ended: None,
            pending: BTreeSet::new(),
            steps: 0,
            step_is_open: false,
        })
    }

    /// Number of blocks, the null block included.
    pub fn num_blocks(&self) -> usize {
        self.num_blocks
    }

    /// Number of tokens per block.
    pub fn block_size(&self) -> usize {
        self.block_size
    }

    /// Namespace of the pool.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// Free list; the first block is handed out next.
    pub fn free(&self) -> impl Iterator<Item = BlockId> + '_ {
        let named = |(_, block): (&i64, &BlockId)| *block;
        let unnamed = (self.unnamed..self.num_blocks as BlockId)
            .filter(|block| !self.blocks.contains_key(block));
        self.places.range(..0).map(named).chain(unnamed).chain(self.places.range(0..).map(named))
    }

    /// Number of blocks in the free list.
    pub fn num_free(&self) -> usize {
        self.num_blocks - 1 - self.blocks.len() + self.places.len()
    }

    /// Reference count of a block.
    pub fn users(&self, block: BlockId) -> u32 {
        self.blocks.get(&block).map_or(0, |b| b.users)
    }

    /// A block's entry in the prefix cache.
    pub fn hashed(&self, block: BlockId) -> Option<&Hashed> {
        self.blocks.get(&block)?.hashed.as_ref()
    }

    /// Blocks that an op has named so far, in the order of their ids.
    pub fn named(&self) -> impl Iterator<Item = BlockId> + '_ {
        self.blocks.keys().copied()
    }

    /// Sequences and their tables.
    pub fn tables(&self) -> &BTreeMap<SeqId, TableState> {
        &self.tables
    }

    /// Number of blocks with pending hashes.
    pub fn pending(&self) -> &BTreeSet<BlockId> {
        &self.pending
    }

    /// Number of steps so far, an open one included.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// Whether a step is open.
    pub fn step_is_open(&self) -> bool {
        self.step_is_open
    }

    /// Applies an op.
    ///
    /// # Errors
    /// [`Contradiction`]; the state does not change then.
    pub fn apply(&mut self, op: &BlockOp<'_>) -> Result<(), Contradiction> {
        use Contradiction as C;
        match *op {
            BlockOp::PoolMade { .. } => return Err(C::SecondPool),
            BlockOp::StepBegins if self.step_is_open => return Err(C::StepIsOpen),
            BlockOp::StepBegins => {
                self.steps += 1;
                self.step_is_open = true;
            }
            BlockOp::StepCommitted | BlockOp::StepAbandoned if !self.step_is_open => {
                return Err(C::NoStep);
            }
            BlockOp::StepCommitted => {
                self.step_is_open = false;
                for block in std::mem::take(&mut self.pending) {
                    let hashed = self.blocks.get_mut(&block).and_then(|b| b.hashed.as_mut());
                    hashed.into_iter().for_each(|h| h.pending = false);
                }
            }
            BlockOp::StepAbandoned => self.step_is_open = false,
            BlockOp::SequenceBegins { seq, ref label } => {
                if self.tables.contains_key(&seq) {
                    return Err(C::AlreadyThere { seq });
                }
                let label = label.as_ref().to_owned();
                self.tables.insert(seq, TableState { label, ..TableState::default() });
                self.ended = self.ended.filter(|ended| *ended != seq);
            }
            BlockOp::SequenceEnds { seq, .. } => {
                self.tables.remove(&seq).ok_or(C::UnknownSequence { seq })?;
                self.ended = Some(seq);
            }
            BlockOp::Grows { seq, .. } | BlockOp::Registers { seq, .. } => {
                self.table(seq)?;
            }
            BlockOp::RollsBack { seq, len } => {
                let table = self.table(seq)?;
                table.stored = table.stored.min(len);
            }
            BlockOp::PrefixHit { seq, ref blocks } => {
                for &block in blocks.iter() {
                    self.known(block)?;
                }
                let tokens = blocks.len() * self.block_size;
                self.table(seq)?.stored = tokens;
            }
            BlockOp::Wrote { seq, from, to } => {
                let block_size = self.block_size;
                let table = self.table(seq)?;
                let capacity = table.blocks.len() * block_size;
                if from > to || to > capacity {
                    return Err(C::Written { seq, from, to, capacity });
                }
                table.stored = to;
            }
            BlockOp::Refused { .. } => {}
            BlockOp::Copied { from, to, .. } => {
                self.known(from)?;
                self.known(to)?;
            }
            BlockOp::CacheCleared => {
                self.pending.clear();
                self.blocks.values_mut().for_each(|b| b.hashed = None);
            }
            BlockOp::Pop { block } => {
                self.known(block)?;
                let front = self.front();
                if front != Some(block) {
                    return Err(C::NotAtFront { block, front });
                }
                self.leave(block)?;
            }
            BlockOp::Unlink { block } => self.leave(block)?,
            BlockOp::PushFront { block } => {
                let place = self.places.first_key_value().map_or(0, |(place, _)| *place).min(0);
                self.enter(block, place - 1)?;
            }
            BlockOp::PushBack { block } => {
                let place = self.places.last_key_value().map_or(0, |(place, _)| *place).max(0);
                self.enter(block, place + 1)?;
            }
            BlockOp::RefCount { block, count } => self.block(block)?.users = count,
            BlockOp::Hashed { block, hash, parent, pending } => {
                let entry = &mut self.block(block)?.hashed;
                if entry.is_some() {
                    return Err(C::AlreadyHashed { block });
                }
                *entry = Some(Hashed { hash, parent, pending });
                if pending {
                    self.pending.insert(block);
                }
            }
            BlockOp::Unhashed { block } => {
                self.block(block)?.hashed.take().ok_or(C::NotHashed { block })?;
                self.pending.remove(&block);
            }
            BlockOp::Append { seq, block } => {
                if block != NULL_BLOCK {
                    self.known(block)?;
                }
                self.table(seq)?.blocks.push(block);
            }
            BlockOp::Truncate { seq, blocks: 0 } if self.ended == Some(seq) => {}
            BlockOp::Truncate { seq, blocks: keeps } => {
                let table = self.table(seq)?;
                let has = table.blocks.len();
                if keeps > has {
                    return Err(C::Truncated { seq, keeps, has });
                }
                table.blocks.truncate(keeps);
            }
        }
        Ok(())
    }

    /// Checks a block between acts: it must be either used or free.
    ///
    /// # Errors
    /// [`Contradiction::Lost`], [`Contradiction::FreeAndUsed`].
    pub fn check_settled(&self, block: BlockId) -> Result<(), Contradiction> {
        let Some(b) = self.blocks.get(&block) else { return Ok(()) };
        match (b.users, b.place) {
            (0, None) => Err(Contradiction::Lost { block }),
            (users, Some(_)) if users > 0 => Err(Contradiction::FreeAndUsed { block, users }),
            _ => Ok(()),
        }
    }

    fn known(&self, block: BlockId) -> Result<(), Contradiction> {
        if block == NULL_BLOCK {
            Err(Contradiction::NullBlock)
        } else if block as usize >= self.num_blocks {
            Err(Contradiction::UnknownBlock { block, num_blocks: self.num_blocks })
        } else {
            Ok(())
        }
    }

    /// Returns a block that gets users or a hash. It must have been taken from the free list.
    fn block(&mut self, block: BlockId) -> Result<&mut Block, Contradiction> {
        self.known(block)?;
        if !self.blocks.contains_key(&block) {
            return Err(Contradiction::NeverTaken { block });
        }
        Ok(self.blocks.entry(block).or_default())
    }

    fn table(&mut self, seq: SeqId) -> Result<&mut TableState, Contradiction> {
        self.tables.get_mut(&seq).ok_or(Contradiction::UnknownSequence { seq })
    }

    fn front(&mut self) -> Option<BlockId> {
        while self.blocks.contains_key(&self.unnamed) {
            self.unnamed += 1;
        }
        let first = self.places.first_key_value();
        match first {
            Some((..0, block)) => Some(*block),
            _ if (self.unnamed as usize) < self.num_blocks => Some(self.unnamed),
            _ => first.map(|(_, block)| *block),
        }
    }

    fn leave(&mut self, block: BlockId) -> Result<(), Contradiction> {
        self.known(block)?;
        match self.blocks.get_mut(&block) {
            Some(b) => {
                let place = b.place.take().ok_or(Contradiction::NotFree { block })?;
                self.places.remove(&place);
            }
            None => {
                self.blocks.insert(block, Block::default());
            }
        }
        Ok(())
    }

    fn enter(&mut self, block: BlockId, place: i64) -> Result<(), Contradiction> {
        self.known(block)?;
        match self.blocks.get_mut(&block) {
            Some(b) if b.place.is_none() => {
                b.place = Some(place);
                self.places.insert(place, block);
                Ok(())
            }
            _ => Err(Contradiction::AlreadyFree { block }),
        }
    }
}
