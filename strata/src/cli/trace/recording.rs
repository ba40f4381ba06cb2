//! From a block recording to a page.

use std::collections::HashMap;
use std::io::BufRead;

use l3_paged_kv::trace::{self, BlockOp, PoolState, TraceError};
use l3_paged_kv::{BlockHash, BlockId, SeqId};

use super::page::{Delta, Frame, HashName, Page};
use super::sentence::{self, Moved};

/// Reads a recording. Frames beyond `most` are read, and counted, and left out.
///
/// # Errors
/// [`TraceError`]
pub fn page(input: impl BufRead, title: &str, most: usize) -> Result<Page, TraceError> {
    let mut reader = trace::read(input)?;
    let mut names = Names::default();
    let state = reader.state();
    let mut page = Page::new(title, "recording", state.num_blocks());
    page.block_size = Some(state.block_size());
    page.namespace = Some(state.namespace().to_owned());
    while let Some(frame) = reader.next_frame()? {
        if page.frames.len() == most {
            page.left_out += 1;
            continue;
        }
        let frame = names.frame(&frame, reader.state(), &mut page);
        page.push(frame);
    }
    page.finish();
    Ok(page)
}

/// Where sequences and hashes stand in the page's lists.
#[derive(Default)]
struct Names {
    sequences: HashMap<SeqId, usize>,
    hashes: HashMap<BlockHash, usize>,
}

impl Names {
    fn frame(&mut self, frame: &trace::Frame, after: &PoolState, page: &mut Page) -> Frame {
        let ended = match frame.act {
            BlockOp::SequenceEnds { seq, .. } => self.seq(seq),
            _ => None,
        };
        let mut deltas = Vec::new();
        let mut moved = Moved::default();
        for op in std::iter::once(&frame.act).chain(&frame.changes) {
            moved.see(op);
            deltas.extend(self.delta(op, after.block_size(), page));
        }
        let mut hashed = Vec::new();
        for &block in &moved.hashed {
            hashed.extend(after.hashed(block).and_then(|h| self.hashes.get(&h.hash)).copied());
        }
        let step = (after.steps() > 0).then_some(after.steps());
        let in_step = after.step_is_open()
            || matches!(frame.act, BlockOp::StepCommitted | BlockOp::StepAbandoned);
        let seq = |seq: SeqId| self.seq(seq).or(ended).unwrap_or_default();
        Frame {
            step: step.filter(|_| in_step),
            kind: sentence::kind(&frame.act),
            text: sentence::of(&frame.act, &moved, &hashed, after, seq),
            deltas,
        }
    }

    fn delta(&mut self, op: &BlockOp<'_>, block_size: usize, page: &mut Page) -> Option<Delta> {
        Some(match *op {
            BlockOp::SequenceBegins { seq, ref label } => {
                let index = page.sequences.len();
                page.sequences.push(label.as_ref().to_owned());
                self.sequences.insert(seq, index);
                Delta::Begin(index)
            }
            BlockOp::SequenceEnds { seq, .. } => Delta::End(self.sequences.remove(&seq)?),
            BlockOp::RollsBack { seq, len } => Delta::Stored(self.seq(seq)?, len),
            BlockOp::PrefixHit { seq, ref blocks } => {
                Delta::Stored(self.seq(seq)?, blocks.len() * block_size)
            }
            BlockOp::Wrote { seq, to, .. } => Delta::Stored(self.seq(seq)?, to),
            BlockOp::StepCommitted => Delta::Settle,
            BlockOp::CacheCleared => Delta::UnhashAll,
            BlockOp::Pop { block } | BlockOp::Unlink { block } => Delta::Leave(block),
            BlockOp::PushFront { block } => Delta::Front(block),
            BlockOp::PushBack { block } => Delta::Back(block),
            BlockOp::RefCount { block, count } => Delta::Users(block, count),
            BlockOp::Hashed { block, hash, parent, pending } => {
                let parent = parent.map(|parent| self.hash(parent, None, page));
                Delta::Hash(block, Some(self.hash(hash, parent, page)), pending)
            }
            BlockOp::Unhashed { block } => Delta::Unhash(block),
            BlockOp::Append { seq, block } => Delta::Append(self.seq(seq)?, block),
            BlockOp::Truncate { seq, blocks } => Delta::Truncate(self.seq(seq)?, blocks),
            BlockOp::PoolMade { .. }
            | BlockOp::StepBegins
            | BlockOp::StepAbandoned
            | BlockOp::Grows { .. }
            | BlockOp::Registers { .. }
            | BlockOp::Refused { .. }
            | BlockOp::Copied { .. } => return None,
        })
    }

    fn seq(&self, seq: SeqId) -> Option<usize> {
        self.sequences.get(&seq).copied()
    }

    fn hash(&mut self, hash: BlockHash, parent: Option<usize>, page: &mut Page) -> usize {
        let index = *self.hashes.entry(hash).or_insert_with(|| {
            let short = hash.0[..4].iter().map(|byte| format!("{byte:02x}")).collect();
            page.hashes.push(HashName { short, parent });
            page.hashes.len() - 1
        });
        page.hashes[index].parent = page.hashes[index].parent.or(parent);
        index
    }
}

/// `{b5}`, `{b5} and {b6}`, `{b5}, {b6} and 12 more`.
pub fn list(blocks: &[BlockId]) -> String {
    const MOST: usize = 8;
    let shown = if blocks.len() > MOST { &blocks[..MOST - 1] } else { blocks };
    let mut parts: Vec<String> = shown.iter().map(|block| format!("{{b{block}}}")).collect();
    if blocks.len() > shown.len() {
        parts.push(format!("{} more", blocks.len() - shown.len()));
    }
    match parts.split_last() {
        None => "nothing".to_owned(),
        Some((only, [])) => only.clone(),
        Some((last, rest)) => format!("{} and {last}", rest.join(", ")),
    }
}
