//! Sentences about the events of a recording.

use l3_paged_kv::trace::{BlockOp, Ending, PoolState};
use l3_paged_kv::{BlockId, SeqId};

use super::recording::list;
use server::words::count;

/// The changes of a frame, sorted by what they mean to a reader.
#[derive(Debug, Default)]
pub struct Moved {
    /// Found in the cache.
    pub hit: Vec<BlockId>,
    /// Taken from the front of the free list.
    pub popped: Vec<BlockId>,
    /// Taken from the middle of the free list.
    pub unlinked: Vec<BlockId>,
    /// Put to the front of the free list.
    pub front: Vec<BlockId>,
    /// Put to its back.
    pub back: Vec<BlockId>,
    /// Got or lost a user, and is still in use.
    pub used: Vec<BlockId>,
    /// Got a hash.
    pub hashed: Vec<BlockId>,
    /// Whether that hash is pending.
    pub pending: bool,
    /// Lost its hash.
    pub unhashed: Vec<BlockId>,
    /// Copied: from, to, tokens.
    pub copied: Option<(BlockId, BlockId, usize)>,
}

impl Moved {
    /// One more change.
    pub fn see(&mut self, op: &BlockOp<'_>) {
        match *op {
            BlockOp::PrefixHit { ref blocks, .. } => self.hit.extend_from_slice(blocks),
            BlockOp::Pop { block } => self.popped.push(block),
            BlockOp::Unlink { block } => self.unlinked.push(block),
            BlockOp::PushFront { block } => self.front.insert(0, block),
            BlockOp::PushBack { block } => self.back.push(block),
            BlockOp::RefCount { block, count } if count > 0 => self.used.push(block),
            BlockOp::Hashed { block, pending, .. } => {
                self.hashed.push(block);
                self.pending |= pending;
            }
            BlockOp::Unhashed { block } => self.unhashed.push(block),
            BlockOp::Copied { from, to, tokens } => self.copied = Some((from, to, tokens)),
            _ => {}
        }
    }

    /// Blocks in use before and after, whose reference count changed.
    fn shared(&self) -> Vec<BlockId> {
        let moved = |b: &&BlockId| !self.popped.contains(b) && !self.unlinked.contains(b);
        self.used.iter().filter(moved).copied().collect()
    }

    /// Blocks that are taken from the free list, and those of them that are evicted from the cache.
    fn taken(&self) -> String {
        let mut text = format!(
            "{} {} from the front of the free list.",
            list(&self.popped),
            one_or_more(&self.popped, "comes", "come")
        );
        let evicted: Vec<_> =
            self.unhashed.iter().filter(|b| self.popped.contains(b)).copied().collect();
        if !evicted.is_empty() {
            text += &format!(
                " {} {} still cached: a block is evicted when it is handed out.",
                list(&evicted),
                one_or_more(&evicted, "was", "were"),
            );
        }
        text
    }

    /// Hashes that are withdrawn because their blocks will not be computed.
    fn withdrawn(&self) -> String {
        let blocks: Vec<_> =
            self.unhashed.iter().filter(|b| !self.popped.contains(b)).copied().collect();
        if blocks.is_empty() {
            return String::new();
        }
        format!(
            " {} will not be computed, so no request may reuse {} any more.",
            list(&blocks),
            one_or_more(&blocks, "it", "them"),
        )
    }

    /// Positions of freed blocks in the free list.
    fn freed(&self) -> String {
        let mut text = self.withdrawn();
        if !self.front.is_empty() {
            text += &format!(
                " {} {} no hash and cannot be reused: to the front of the free list, to be handed out next.",
                list(&self.front),
                one_or_more(&self.front, "has", "have"),
            );
        }
        if !self.back.is_empty() {
            text += &format!(
                " {} {} cached and {} at the back{}.",
                list(&self.back),
                one_or_more(&self.back, "stays", "stay"),
                one_or_more(&self.back, "queues", "queue"),
                one_or_more(
                    &self.back,
                    "",
                    ", tail first: the end of a text is forgotten before its beginning"
                ),
            );
        }
        let shared = self.shared();
        if !shared.is_empty() {
            text += &format!(
                " {} {} in use: others share {}.",
                list(&shared),
                one_or_more(&shared, "stays", "stay"),
                one_or_more(&shared, "it", "them"),
            );
        }
        text
    }
}

fn one_or_more<'a, T>(items: &[T], one: &'a str, more: &'a str) -> &'a str {
    if items.len() == 1 { one } else { more }
}

/// Kind of an operation, for the list of frames.
pub fn kind(act: &BlockOp<'_>) -> &'static str {
    match act {
        BlockOp::PoolMade { .. } => "pool",
        BlockOp::StepBegins => "step begins",
        BlockOp::StepCommitted => "step ran",
        BlockOp::StepAbandoned => "abandoned",
        BlockOp::SequenceBegins { .. } => "enters",
        BlockOp::Grows { .. } => "grows",
        BlockOp::Registers { .. } => "hash",
        BlockOp::RollsBack { .. } => "rolls back",
        BlockOp::SequenceEnds { .. } => "ends",
        BlockOp::Refused { .. } => "refused",
        BlockOp::CacheCleared => "reset",
        BlockOp::Wrote { .. } => "writes",
        _ => "change",
    }
}

/// Sentence of a frame. `hashed` are the indices of its new hashes in the page, `after` is the state at its end.
pub fn of(
    act: &BlockOp<'_>,
    moved: &Moved,
    hashed: &[usize],
    after: &PoolState,
    seq: impl Fn(SeqId) -> usize,
) -> String {
    let name = |s: SeqId| format!("{{s{}}}", seq(s));
    match *act {
        BlockOp::PoolMade { num_blocks, block_size, .. } => format!(
            "A pool of {num_blocks} blocks is made, {} each. {{b0}} is the null block: it stands for “no block” \
            and is never handed out.",
            count(block_size, "token")
        ),
        BlockOp::StepBegins => format!(
            "Step {} begins. Until it has run, all its changes can be undone.",
            after.steps()
        ),
        BlockOp::StepCommitted => {
            format!("Step {} has run: pending hashes are valid now.", after.steps())
        }
        BlockOp::StepAbandoned => {
            format!(
                "Step {} is abandoned, and all its changes are undone.{}",
                after.steps(),
                moved.freed()
            )
        }
        BlockOp::SequenceBegins { seq, .. } => enters(&name(seq), moved, after.block_size()),
        BlockOp::Grows { seq, up_to_len } if moved.popped.is_empty() => {
            format!("{} has room for {} already.", name(seq), count(up_to_len, "token"))
        }
        BlockOp::Grows { seq, up_to_len } => {
            format!("{} needs room for {}: {}", name(seq), count(up_to_len, "token"), moved.taken())
        }
        BlockOp::Registers { seq, .. } if moved.hashed.is_empty() => {
            format!("{} fills no block in this step.", name(seq))
        }
        BlockOp::Registers { seq, .. } => {
            let withdrawn = moved.withdrawn();
            let by = match hashed {
                [only] => format!(" under the hash {{h{only}}}"),
                _ => String::new(),
            };
            let pending = if moved.pending { ", pending until the step has run" } else { "" };
            format!(
                "{} fills {}. Requests that begin with the same tokens can reuse {}{by} from now \
                on{pending}.{withdrawn}",
                name(seq),
                list(&moved.hashed),
                one_or_more(&moved.hashed, "it", "them"),
            )
        }
        BlockOp::RollsBack { seq, len } => {
            let copied = match moved.copied {
                Some((from, to, tokens)) => format!(
                    " {{b{from}}} is cached or shared and must stay unchanged: its first {} are copied to {{b{to}}}.",
                    count(tokens, "token")
                ),
                None => String::new(),
            };
            format!(
                "{} forgets its tokens from position {len} on.{copied}{}",
                name(seq),
                moved.freed()
            )
        }
        BlockOp::SequenceEnds { seq, why } => {
            let how = match why {
                Ending::Freed => "ends.",
                Ending::Unfounded => {
                    "ends too: its prefix hit was on blocks that will not be computed."
                }
                Ending::Abandoned => {
                    "was admitted by the step that is abandoned, and ends with it."
                }
            };
            format!("{} {how}{}", name(seq), moved.freed())
        }
        BlockOp::Refused { needed, free } => format!(
            "{} {} requested and {free} {} free: nothing is allocated, because a part would be of no use.",
            count(needed, "block"),
            if needed == 1 { "is" } else { "are" },
            if free == 1 { "is" } else { "are" },
        ),
        BlockOp::CacheCleared => {
            "All hashes are removed. The free list keeps its order.".to_owned()
        }
        // The hashes of a sequence that is freed inside of its step go before it does.
        BlockOp::Wrote { seq, from, to } => {
            writes(&name(seq), from, to, after, seq) + &moved.withdrawn()
        }
        _ => format!("{} changed.", list(&moved.used)),
    }
}

fn enters(name: &str, moved: &Moved, block_size: usize) -> String {
    let mut text = format!("{name} enters.");
    if moved.hit.is_empty() {
        text += " Nothing of its prompt is cached.";
    } else {
        text += &format!(
            " Its prompt hit {}: {} need not be computed.",
            list(&moved.hit),
            count(moved.hit.len() * block_size, "token")
        );
    }
    if !moved.unlinked.is_empty() {
        text += &format!(
            " {} {} the middle of the free list, where {} stood.",
            list(&moved.unlinked),
            one_or_more(&moved.unlinked, "leaves", "leave"),
            one_or_more(&moved.unlinked, "it", "they"),
        );
    }
    let shared = moved.shared();
    if !shared.is_empty() {
        text += &format!(
            " {} {} in use already, and {} shared now.",
            list(&shared),
            one_or_more(&shared, "was", "were"),
            one_or_more(&shared, "is", "are"),
        );
    }
    if !moved.popped.is_empty() {
        text += &format!(" {}", moved.taken());
    }
    text
}

fn writes(name: &str, from: usize, to: usize, after: &PoolState, seq: SeqId) -> String {
    let size = after.block_size();
    let table = after.tables().get(&seq).map_or(&[][..], |t| &t.blocks);
    let slot = |position: usize| {
        let block = *table.get(position / size)?;
        Some((block, position % size, block as usize * size + position % size))
    };
    match (to.checked_sub(1).and_then(slot), slot(from)) {
        (Some((block, offset, at)), _) if from + 1 == to => format!(
            "Keys and values of position {from} of {name} go to slot {at} = {{b{block}}} × {size} + {offset}."
        ),
        (Some(_), Some((block, offset, at))) if from < to => format!(
            "Keys and values of positions {from} to {} of {name} are written through its table: position {from} to \
            slot {at} = {{b{block}}} × {size} + {offset}, and so on.",
            to - 1
        ),
        _ => format!("{name} writes nothing."),
    }
}
