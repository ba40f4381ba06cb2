//! Managers in a state that no later exercise is needed for: blocks are cached by hand.

use crate::{BlockHasher, BlockId, BlockManager, ExtraKeys, ManagerConfig, TokenChain};

pub(super) fn manager(num_blocks: usize, block_size: usize) -> BlockManager {
    BlockManager::new(ManagerConfig::new(num_blocks, block_size)).unwrap()
}

/// The tokens `from..from + len`.
pub(super) fn chain(block_size: usize, from: u32, len: usize) -> TokenChain {
    let mut chain = TokenChain::new(&BlockHasher::new(block_size), ExtraKeys::default());
    chain.extend(&(from..from + len as u32).collect::<Vec<_>>());
    chain
}

/// Take free blocks, hash them as the first `count` of the chain, and give them back: tail first,
/// as a sequence that computed them would.
pub(super) fn cache(manager: &mut BlockManager, chain: &TokenChain, count: usize) -> Vec<BlockId> {
    let blocks: Vec<BlockId> = (0..count).map(|_| manager.pool.pop().unwrap()).collect();
    for (block, hash) in blocks.iter().zip(chain.hashes()) {
        manager.cache.insert(manager.config.group, *hash, *block);
    }
    for block in blocks.iter().rev() {
        manager.pool.release(*block, true).unwrap();
    }
    blocks
}

pub(super) fn free_list(manager: &BlockManager) -> Vec<BlockId> {
    manager.pool.free_list().iter().collect()
}
