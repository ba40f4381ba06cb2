//! Questions about layer 3: keys and values in blocks.

mod admit_free;
mod batch_lengths;
mod batch_slots;
mod block_bytes;
mod block_users;
mod budget_blocks;
mod dram_chunks;
mod drawn;
mod evicted_next;
mod hashed_tokens;
mod keys_seen;
mod longest_context;
mod missing_blocks;
mod pool_usage;
mod prefix_hit;
mod replanned;
mod rollback_copy;
mod same_block;
mod tier_tokens;
mod token_slot;

use super::kind::Kind;

/// In the order of the chapters.
pub const KINDS: &[Kind] = &[
    evicted_next::KIND,
    pool_usage::KIND,
    block_users::KIND,
    token_slot::KIND,
    missing_blocks::KIND,
    same_block::KIND,
    prefix_hit::KIND,
    admit_free::KIND,
    hashed_tokens::KIND,
    replanned::KIND,
    batch_slots::KIND,
    batch_lengths::KIND,
    keys_seen::KIND,
    rollback_copy::KIND,
    block_bytes::KIND,
    budget_blocks::KIND,
    longest_context::KIND,
    dram_chunks::KIND,
    tier_tokens::KIND,
];
