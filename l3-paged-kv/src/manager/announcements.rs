//! KV events of one step, collected and published at its end.
//!
//! A block is published as stored at the commit, when it is computed. Its removal is published only if it was published
//! as stored. In between, a hash may be registered and removed several times, on one block or on several, so the cache
//! records for each hash whether it was published.

use crate::events::{EventStream, KvEvent, Medium};
use crate::{BlockHash, BlockId, Forgotten, GroupId, PrefixCache, SeqId, TokenChain};

/// Blocks that will be published if their sequence is still live at the commit.
struct Registered {
    seq: SeqId,
    blocks: Vec<BlockId>,
    hashes: Vec<BlockHash>,
    parent: Option<BlockHash>,
    tokens: Vec<u32>,
    lora: Option<(String, String)>,
}

/// Changes of one step that will be published. Exists only if the manager has an event stream.
pub(super) struct Announcements {
    stream: EventStream,
    medium: Medium,
    group: GroupId,
    block_size: usize,
    registered: Vec<Registered>,
    /// Those of the step that runs, while the next one is planned.
    running: Vec<Registered>,
    removed: Vec<BlockHash>,
}

impl Announcements {
    pub(super) fn new(
        stream: EventStream,
        medium: Medium,
        group: GroupId,
        block_size: usize,
    ) -> Self {
        let (registered, running, removed) = (Vec::new(), Vec::new(), Vec::new());
        Self { stream, medium, group, block_size, registered, running, removed }
    }

    /// Exchanges the newest step, which is empty then, with the one that runs.
    pub(super) fn swap_steps(&mut self) {
        std::mem::swap(&mut self.registered, &mut self.running);
    }

    /// Records that a sequence's blocks from index `first` on got the hashes of its chain.
    pub(super) fn registered(
        &mut self,
        seq: SeqId,
        blocks: &[BlockId],
        chain: &TokenChain,
        first: usize,
    ) {
        let range = first..first + blocks.len();
        let tokens = first * self.block_size..range.end * self.block_size;
        self.registered.push(Registered {
            seq,
            blocks: blocks.to_vec(),
            hashes: chain.hashes()[range].to_vec(),
            parent: first.checked_sub(1).map(|before| chain.hashes()[before]),
            tokens: chain.tokens()[tokens].to_vec(),
            lora: chain.keys().lora.clone(),
        });
    }

    /// Records that a block's hash was removed.
    pub(super) fn forgotten(&mut self, what: &Forgotten) {
        if what.announced {
            self.removed.push(what.hash);
        }
    }

    /// Publishes the events of a step that ran. `lives`: whether a sequence is still live, with the hashes that it
    /// registered.
    pub(super) fn commit(&mut self, cache: &mut PrefixCache, lives: impl Fn(SeqId) -> bool) {
        let mut events = self.take_removed();
        for registered in std::mem::take(&mut self.registered) {
            if lives(registered.seq) {
                self.announce(registered, cache, &mut events);
            }
        }
        self.stream.publish(events);
    }

    /// Publishes the events of a step that did not run: only the blocks that were evicted for it.
    pub(super) fn abandon(&mut self) {
        self.registered.clear();
        let events = self.take_removed();
        self.stream.publish(events);
    }

    /// Publishes that the cache was cleared, outside of any step.
    pub(super) fn cleared(&mut self) {
        let mut events = self.take_removed();
        events.push(KvEvent::AllBlocksCleared);
        self.stream.publish(events);
    }

    fn take_removed(&mut self) -> Vec<KvEvent> {
        if self.removed.is_empty() {
            return Vec::new();
        }
        vec![KvEvent::BlockRemoved {
            block_hashes: std::mem::take(&mut self.removed),
            medium: self.medium,
            group_idx: self.group,
        }]
    }

    /// Appends an event for each run of consecutive blocks whose hashes were not published before.
    fn announce(&self, registered: Registered, cache: &mut PrefixCache, events: &mut Vec<KvEvent>) {
        let Registered { blocks, hashes, parent, tokens, lora, .. } = registered;
        let news: Vec<bool> = blocks.iter().map(|block| cache.announce(*block)).collect();
        let (lora_name, lora_path) = lora.unzip();
        let mut start = 0;
        for run in news.chunk_by(|a, b| a == b) {
            let range = start..start + run.len();
            start = range.end;
            if !run[0] {
                continue;
            }
            let parent = range.start.checked_sub(1).map_or(parent, |before| Some(hashes[before]));
            let tokens = &tokens[range.start * self.block_size..range.end * self.block_size];
            events.push(KvEvent::BlockStored {
                block_hashes: hashes[range].to_vec(),
                parent_block_hash: parent,
                token_ids: tokens.to_vec(),
                block_size: self.block_size,
                lora_name: lora_name.clone(),
                lora_path: lora_path.clone(),
                medium: self.medium,
                group_idx: self.group,
            });
        }
    }
}
