//! KV events: notifications of what enters and leaves the prefix cache.
//!
//! A router that sends a request to the engine that has cached its prefix must know which engine caches
//! what. So the block manager publishes which hashes can be hit from now on ([`KvEvent::BlockStored`]) and
//! which no longer can ([`KvEvent::BlockRemoved`]). Names and fields are those of vLLM's KV events; hashes
//! are hexadecimal here.
//!
//! Events of one step travel as an [`EventBatch`]. Batches are numbered without gaps, and an
//! [`EventStream`] keeps the last of them. A subscriber that was away briefly can replay what it missed; one
//! that was away for longer gets [`StreamError::Lost`], and knows that its index is out of date.

mod stream;
mod sync;

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{BlockHash, GroupId};
pub use stream::StreamError;

/// A change of the prefix cache.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type")]
pub enum KvEvent {
    /// These blocks can be hit from now on. They are consecutive blocks of one sequence.
    BlockStored {
        /// Hashes of the blocks, in the order of the sequence.
        block_hashes: Vec<BlockHash>,
        /// The hash of the block before the first of them; `None` at the beginning of a sequence.
        parent_block_hash: Option<BlockHash>,
        /// `block_hashes.len() * block_size` tokens.
        token_ids: Vec<u32>,
        /// Number of tokens per block.
        block_size: usize,
        /// Name of the LoRA adapter, if one ran. The hashes are made of it, `lora_path`, the tokens
        /// and the cache salt; the salt is a secret of its tenant and is not published.
        lora_name: Option<String>,
        /// Path of that adapter, with a digest of its contents if it has one.
        lora_path: Option<String>,
        /// Medium that stores the blocks.
        medium: Medium,
        /// Group of layers that the blocks belong to.
        group_idx: GroupId,
    },
    /// No block holds these contents any longer.
    BlockRemoved {
        /// Hashes of the blocks, in no particular order.
        block_hashes: Vec<BlockHash>,
        /// Medium that stored the blocks.
        medium: Medium,
        /// Group of layers that the blocks belonged to.
        group_idx: GroupId,
    },
    /// The cache was cleared.
    AllBlocksCleared,
}

/// Medium that stores blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Medium {
    /// Memory of a device.
    Gpu,
    /// Main memory.
    Cpu,
    /// Disk, or a store behind a network.
    Storage,
}

/// The events of one step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventBatch {
    /// Sequence number: 0, 1, 2 and so on for the life of the stream. A restarted engine begins at 0.
    pub sequence: u64,
    /// Namespace of the pool: the specialist (model) that owns the blocks. Two specialists may have equal
    /// hashes, which then stand for different contents.
    pub namespace: String,
    /// Events in the order in which they happened.
    pub events: Vec<KvEvent>,
}

/// A stream of published batches. A clone is the same stream.
#[derive(Clone)]
pub struct EventStream {
    namespace: Arc<str>,
    publisher: stream::Publisher<Arc<EventBatch>>,
}

impl EventStream {
    /// Creates a stream for the blocks of one specialist. It keeps the last `replay` batches (at least one)
    /// for subscribers that fall behind.
    pub fn new(namespace: &str, replay: usize) -> Self {
        Self { namespace: namespace.into(), publisher: stream::Publisher::new(replay) }
    }

    /// Namespace of the pool.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// Publishes the events of one step as a batch; does nothing if `events` is empty. Never waits for a
    /// subscriber: one that is too slow loses batches, and gets [`StreamError::Lost`].
    pub fn publish(&self, events: Vec<KvEvent>) {
        if events.is_empty() {
            return;
        }
        let namespace = self.namespace.to_string();
        self.publisher.publish(|sequence| Arc::new(EventBatch { sequence, namespace, events }));
    }

    /// Sequence number of the next batch to be published.
    pub fn next_sequence(&self) -> u64 {
        self.publisher.next()
    }

    /// Subscribes to every batch from number `from` on, or (`None`) to future batches only.
    ///
    /// # Errors
    /// [`StreamError::Lost`] when batch `from` is no longer kept, [`StreamError::Ahead`] when it is beyond
    /// the next one.
    pub fn subscribe(&self, from: Option<u64>) -> Result<Subscription, StreamError> {
        Ok(Subscription { subscriber: self.publisher.subscribe(from)? })
    }
}

/// A subscriber of an [`EventStream`]. As an iterator it waits for each next batch, and ends when all
/// clones of the stream are dropped.
///
/// After [`StreamError::Lost`] it continues with the oldest batch that is kept. Removals may have been
/// missed, so an index that was built from earlier batches must be cleared.
pub struct Subscription {
    subscriber: stream::Subscriber<Arc<EventBatch>>,
}

impl Subscription {
    /// Sequence number of the next batch to be read.
    pub fn next_sequence(&self) -> u64 {
        self.subscriber.position()
    }

    /// Waits for the next batch. `None` when the stream has ended.
    ///
    /// # Errors
    /// [`StreamError::Lost`].
    pub fn recv(&mut self) -> Result<Option<Arc<EventBatch>>, StreamError> {
        self.subscriber.recv()
    }

    /// Waits for the next batch for at most `timeout`. `None` on timeout, or when the stream has ended.
    ///
    /// # Errors
    /// [`StreamError::Lost`].
    pub fn recv_timeout(
        &mut self,
        timeout: Duration,
    ) -> Result<Option<Arc<EventBatch>>, StreamError> {
        self.subscriber.recv_timeout(timeout)
    }

    /// Returns the next batch without waiting; `None` if there is none yet.
    ///
    /// # Errors
    /// [`StreamError::Lost`].
    pub fn try_recv(&mut self) -> Result<Option<Arc<EventBatch>>, StreamError> {
        self.subscriber.try_recv()
    }

    /// Returns whether the stream has ended and everything was read.
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
