//! KV events: what is cached here, told to whoever routes by it.

pub enum KvEvent { // serde, tag "type": "block_stored" | "block_removed" | "all_blocks_cleared" (vLLM: BlockStored, BlockRemoved, AllBlocksCleared)
    BlockStored { block_hashes: Vec<BlockHash>, parent_block_hash: Option<BlockHash>, token_ids: Vec<u32>, block_size: usize, lora: Option<(name, path)>, medium: Medium, group: GroupId },
    BlockRemoved { block_hashes: Vec<BlockHash>, medium: Medium, group: GroupId },
    AllBlocksCleared,
}
pub enum Medium { Gpu | Cpu .. }   // of this pool: "CPU" here; vLLM says "GPU"
/// Events of one step, numbered from 0 without gaps.
pub struct EventBatch { pub sequence: u64, pub namespace: String, pub events: Vec<KvEvent> }
/// Publisher with a bounded replay buffer. Clone: shared. (the part under the lock lives in events/stream.rs and is tested with loom)
#[derive(Clone)] pub struct EventStream { }
impl EventStream {
    pub fn new(replay: usize, ..) -> Self;
    pub fn publish(&self, events: Vec<KvEvent>);
    /// From `from` on, if the replay buffer still holds it (else a typed `Lost { first_available }`), then live; no gap, no duplicate.
    pub fn subscribe(&self, from: Option<u64>) -> Result<Subscription, Lost>;
    // a slow subscriber never blocks the publisher: bounded queue; it learns of the loss by a gap error and must re-subscribe
}
