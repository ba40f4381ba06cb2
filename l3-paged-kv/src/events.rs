//! KV events: what is cached here, told to whoever wants to know.
//!
//! A router that sends a request to where its beginning is cached must know what is cached where. So
//! the block manager tells: these hashes can be hit from now on ([`KvEvent::BlockStored`]), these
//! cannot any more ([`KvEvent::BlockRemoved`]). The words and fields are those of vLLM's KV events;
//! hashes are hexadecimal here.
//!
//! Events of one step travel as an [`EventBatch`]. Batches are numbered without gaps, and an
//! [`EventStream`] keeps the last of them, so who was away for a moment can ask for what was missed, and
//! who was away for longer learns that. Knowing that one's picture is old is what makes it repairable.

mod stream;
mod sync;

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{BlockHash, GroupId};
pub use stream::StreamError;

/// Something about the cache changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type")]
pub enum KvEvent {
    /// These blocks can be hit from now on. They follow one another.
    BlockStored {
        /// Their hashes, in the order of the sequence.
        block_hashes: Vec<BlockHash>,
        /// The hash of the block before the first of them; `None` at the beginning of a sequence.
        parent_block_hash: Option<BlockHash>,
        /// `block_hashes.len() * block_size` tokens.
        token_ids: Vec<u32>,
        /// Tokens a block holds.
        block_size: usize,
        /// The adapter that ran, if one did. Together with `lora_path` and the tokens, this is what
        /// the hashes are made of; but for a salt, which is its owner's secret and not told.
        lora_name: Option<String>,
        /// Where that adapter came from, with a digest of its contents if it has one.
        lora_path: Option<String>,
        /// Where the blocks are kept.
        medium: Medium,
        /// Which layers they are of.
        group_idx: GroupId,
    },
    /// No block holds these contents any more.
    BlockRemoved {
        /// Hashes, in no order.
        block_hashes: Vec<BlockHash>,
        /// Where the blocks were kept.
        medium: Medium,
        /// Which layers they were of.
        group_idx: GroupId,
    },
    /// Nothing is cached any more.
    AllBlocksCleared,
}

/// Where blocks are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Medium {
    /// Memory of a device.
    Gpu,
    /// Main memory.
    Cpu,
    /// Disks, and what answers over a network.
    Storage,
}

/// The events of one step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventBatch {
    /// Its number: 0, 1, 2 and so on for as long as the stream lives. A restarted engine begins at 0.
    pub sequence: u64,
    /// The specialist whose blocks these are. Hashes of two specialists may be equal; what they name
    /// is not.
    pub namespace: String,
    /// In the order in which it happened.
    pub events: Vec<KvEvent>,
}

/// Where batches are published. A clone is the same stream.
#[derive(Clone)]
pub struct EventStream {
    namespace: Arc<str>,
    publisher: stream::Publisher<Arc<EventBatch>>,
}

impl EventStream {
    /// A stream for the blocks of one specialist. The last `replay` batches are kept (at least one):
    /// that many may be missed without a loss.
    pub fn new(namespace: &str, replay: usize) -> Self {
        Self { namespace: namespace.into(), publisher: stream::Publisher::new(replay) }
    }

    /// The specialist.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// Publish the events of one step; without any, nothing is. Never waits for a subscriber: one that
    /// is too slow loses batches, and learns of it.
    pub fn publish(&self, events: Vec<KvEvent>) {
        if events.is_empty() {
            return;
        }
        let namespace = self.namespace.to_string();
        self.publisher.publish(|sequence| Arc::new(EventBatch { sequence, namespace, events }));
    }

    /// The number the next batch will have.
    pub fn next_sequence(&self) -> u64 {
        self.publisher.next()
    }

    /// Subscribe, to every batch from number `from` on, or to those to come.
    ///
    /// # Errors
    /// [`StreamError::Lost`] when `from` is not kept any more, [`StreamError::Ahead`] when it is beyond
    /// the next one.
    pub fn subscribe(&self, from: Option<u64>) -> Result<Subscription, StreamError> {
        Ok(Subscription { subscriber: self.publisher.subscribe(from)? })
    }
}

/// A reader of an [`EventStream`]. As an iterator it waits for each next batch, and ends when all
/// clones of the stream are gone.
///
/// On [`StreamError::Lost`] it goes on with the oldest batch there is. What it knew is then out of
/// date: blocks may have gone unheard, and whoever keeps an index forgets what was in it.
pub struct Subscription {
    subscriber: stream::Subscriber<Arc<EventBatch>>,
}

impl Subscription {
    /// The number of the batch that comes next.
    pub fn next_sequence(&self) -> u64 {
        self.subscriber.position()
    }

    /// The next batch; waits for it. `None` when there will be no more.
    ///
    /// # Errors
    /// [`StreamError::Lost`].
    pub fn recv(&mut self) -> Result<Option<Arc<EventBatch>>, StreamError> {
        self.subscriber.recv()
    }

    /// The next batch, if it is there within a time. `None` when it was not, or when there will be no
    /// more.
    ///
    /// # Errors
    /// [`StreamError::Lost`].
    pub fn recv_timeout(
        &mut self,
        timeout: Duration,
    ) -> Result<Option<Arc<EventBatch>>, StreamError> {
        self.subscriber.recv_timeout(timeout)
    }

    /// The next batch, if it is there.
    ///
    /// # Errors
    /// [`StreamError::Lost`].
    pub fn try_recv(&mut self) -> Result<Option<Arc<EventBatch>>, StreamError> {
        self.subscriber.try_recv()
    }

    /// Whether everything was read and there will be no more.
    pub fn is_finished(&self) -> bool {
        self.subscriber.is_finished()
    }
}

impl Iterator for Subscription {
    type Item = Result<Arc<EventBatch>, StreamError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.recv().transpose()
    }
}
