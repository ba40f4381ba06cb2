//! Layer 3 of Strata: the KV cache as numbered blocks.
//!
//! A block holds the keys and values of a few tokens. A sequence's *block table* lists its blocks
//! in order; everything above (continuous batching, prefix reuse, preemption) is bookkeeping over
//! numbers, and never touches a tensor.
//!
//! * [`BlockPool`]: which blocks are free, how often each is used ([`FreeList`] inside);
//! * [`BlockTable`]: a sequence's blocks, positions to slots;
//! * [`TokenChain`]: tokens with the hashes of their full blocks; [`PrefixCache`]: hash to block;
//! * [`BlockManager`]: the three together, with all-or-nothing reservations and steps that can be
//!   committed or abandoned; [`events`] publishes what is cached;
//! * [`ForwardMeta`]: what one forward pass must know about a mixed batch ([`MetaOnDevice`]: where a device
//!   reads it);
//! * [`PagedKv`]: the memory, written and attended through block tables; [`PagedState`] puts it
//!   behind l2's `SequenceState`, [`StepState`] one step that a scheduler has planned; [`RecurrentStore`] holds
//!   state that is not KV;
//! * [`sizing`]: how many blocks fit in memory, as printed arithmetic;
//! * [`tier`]: memories behind the pool that keep chunks of blocks by key, in DRAM or on a disk;
//! * [`trace`]: a recording of all of this, for the block viewer.
//!
//! The design is that of vLLM (Kwon et al. 2023, "Efficient Memory Management for Large Language
//! Model Serving with PagedAttention"). The visible behaviour is that of its V1 engine: order of the free list, block
//! hashes, prefix hits.

#![warn(missing_docs)]

mod chain;
mod error;
pub mod events;
mod free_list;
pub mod hash;
mod ids;
mod manager;
mod meta;
mod paged_kv;
mod pool;
mod prefix_cache;
mod recurrent;
pub mod reference;
pub mod sizing;
mod state;
mod step_state;
mod table;
pub mod tier;
pub mod trace;

pub use chain::TokenChain;
pub use error::{KvError, Result};
pub use free_list::FreeList;
pub use hash::{BlockHash, BlockHasher, ExtraKeys};
pub use ids::{BlockId, GroupId, NULL_BLOCK, SeqId};
pub use manager::{Admission, BlockManager, CopyBlock, ManagerConfig, PrefixHit, PrefixStats};
pub use meta::{ForwardMeta, MetaOnDevice};
pub use paged_kv::PagedKv;
pub use pool::BlockPool;
pub use prefix_cache::{Forgotten, PrefixCache};
pub use recurrent::{RecurrentSnapshot, RecurrentStore};
pub use state::{PagedOptions, PagedState};
pub use step_state::StepState;
pub use table::BlockTable;
