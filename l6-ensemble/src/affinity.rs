//! Prefix affinity: which replica was given the beginning of a prompt before.
//!
//! A conversation sends its whole history with each turn. The replica that computed the last turn holds its blocks, and
//! another one would compute them again. The table remembers the blocks of the prompts that each replica was given, as
//! many as its pool has: it is a guess about the replica's prefix cache, made without asking it. A wrong guess costs the
//! time that was thought to be saved, and nothing else.
//!
//! A block is known by a hash of its tokens, of the block before it, and of the salt that keeps tenants apart, as in
//! the engines' own caches. Here 64 bits are enough.

use std::collections::{HashMap, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};

/// Maximum number of blocks that are remembered for a replica.
pub const MAX_BLOCKS: usize = 1 << 16;

/// Hash of a block and of all before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BlockKey(u64);

/// Keys of the whole blocks of a prompt, in order.
pub fn block_keys(block_size: usize, prompt: &[u32], salt: Option<&str>) -> Vec<BlockKey> {
    let mut hasher = DefaultHasher::new();
    salt.hash(&mut hasher);
    let mut before = hasher.finish();
    let key = |block: &[u32]| {
        let mut hasher = DefaultHasher::new();
        (before, block).hash(&mut hasher);
        before = hasher.finish();
        BlockKey(before)
    };
    prompt.chunks_exact(block_size.max(1)).map(key).collect()
}

/// The blocks that each replica of a lane was given.
///
/// # Example
///
/// ```
/// use l6_ensemble::affinity::{PrefixTable, block_keys};
///
/// let mut table = PrefixTable::new(4, 2, 100);
/// let first: Vec<u32> = (0..10).collect();
/// table.given(1, &block_keys(4, &first, None));
/// let next: Vec<u32> = (0..20).collect();
/// let cached = table.cached_tokens(&block_keys(4, &next, None));
/// assert_eq!(cached, [0, 8], "the whole blocks of the first turn");
/// assert_eq!(table.cached_tokens(&block_keys(4, &next, Some("other tenant"))), [0, 0]);
/// ```
#[derive(Debug)]
pub struct PrefixTable {
    block_size: usize,
    capacity: usize,
    replicas: Vec<Given>,
}

/// Blocks of one replica.
#[derive(Debug, Default)]
struct Given {
    /// The last ones, the oldest first. A block that is given again is in it again.
    order: VecDeque<BlockKey>,
    /// How often each is in the order.
    known: HashMap<BlockKey, u32>,
}

impl PrefixTable {
    /// An empty table of so many replicas, whose pools have `capacity` blocks each.
    pub fn new(block_size: usize, replicas: usize, capacity: usize) -> Self {
        let replicas = (0..replicas).map(|_| Given::default()).collect();
        Self { block_size: block_size.max(1), capacity: capacity.min(MAX_BLOCKS), replicas }
    }

    /// Number of tokens in a block.
    pub fn block_size(&self) -> usize {
        self.block_size
    }

    /// Number of tokens at the beginning of a prompt that each replica was given, in whole blocks.
    pub fn cached_tokens(&self, prompt: &[BlockKey]) -> Vec<usize> {
        let longest = |given: &Given| {
            let known = prompt.iter().take_while(|key| given.known.contains_key(key));
            known.count() * self.block_size
        };
        self.replicas.iter().map(longest).collect()
    }

    /// Notes that a replica was given a prompt. What it was given longest ago is forgotten.
    pub fn given(&mut self, replica: usize, prompt: &[BlockKey]) {
        let capacity = self.capacity;
        let Some(Given { order, known }) = self.replicas.get_mut(replica) else { return };
        for key in prompt.iter().take(capacity) {
            order.push_back(*key);
            *known.entry(*key).or_default() += 1;
        }
        while order.len() > capacity {
            let Some(oldest) = order.pop_front() else { break };
            if let Some(count) = known.get_mut(&oldest) {
                *count -= 1;
                if *count == 0 {
                    known.remove(&oldest);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Against a naive model: the list of all blocks that were given, of which the last ones count.
        #[test]
        fn the_longest_known_prefix_is_found_and_memory_is_bounded(
            prompts in prop::collection::vec(prop::collection::vec(0_u32..2, 0..12), 1..12),
            capacity in 0_usize..10,
        ) {
            let mut table = PrefixTable::new(2, 1, capacity);
            let mut all = Vec::new();
            for prompt in &prompts {
                let keys = block_keys(2, prompt, None);
                let last = &all[all.len().saturating_sub(capacity)..];
                let known = keys.iter().take_while(|key| last.contains(*key)).count();
                prop_assert_eq!(table.cached_tokens(&keys), [2 * known]);
                table.given(0, &keys);
                all.extend(keys.into_iter().take(capacity));
                prop_assert!(table.replicas[0].order.len() <= capacity);
                prop_assert!(table.replicas[0].known.len() <= capacity);
            }
        }
    }

    #[test]
    fn a_block_is_known_by_everything_before_it() {
        let keys = |prompt: &[u32]| block_keys(2, prompt, None);
        assert_eq!(keys(&[1, 2, 3, 4, 5]).len(), 2, "half a block has no key");
        assert_eq!(keys(&[1, 2, 3, 4])[0], keys(&[1, 2, 9, 9])[0]);
        assert_ne!(keys(&[1, 2, 3, 4])[1], keys(&[9, 9, 3, 4])[1]);
        assert_ne!(keys(&[1, 2]), block_keys(2, &[1, 2], Some("")));
    }
}
