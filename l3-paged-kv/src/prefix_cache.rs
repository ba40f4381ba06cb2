//! From a block's hash to the blocks that hold it.

/// Which group of layers a block belongs to (DESIGN seam 7); part of the key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GroupId(pub u32);

/// Hash map (hash, group) -> blocks; several blocks may hold the same contents (duplicates are allowed): lookup returns the
/// one registered first. Intrusive per-block links, reserved at start: registering and forgetting allocate nothing, O(1).
/// The map's hasher takes eight bytes of the sha256: it is uniformly distributed already.
pub struct PrefixCache { }

impl PrefixCache {
    pub fn new(num_blocks: usize) -> Self;
    pub fn get(&self, group: GroupId, hash: &BlockHash) -> Option<BlockId>;
    /// Returns whether this hash was not in the cache before (=> a `stored` event).
    pub fn insert(&mut self, group: GroupId, hash: BlockHash, block: BlockId) -> bool;
    /// Forget a block's hash. Returns the hash, and whether no other block holds it any more (=> a `removed` event).
    pub fn remove(&mut self, block: BlockId) -> Option<(GroupId, BlockHash, bool)>;
    pub fn hash_of(&self, block: BlockId) -> Option<&BlockHash>;
    pub fn is_cached(&self, block: BlockId) -> bool;
    pub fn len(&self) -> usize;      // blocks with a hash
    pub fn clear(&mut self);
}
