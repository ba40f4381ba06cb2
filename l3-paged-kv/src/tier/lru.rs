//! Chunks in the order of their last use, with their sizes.

use std::collections::{BTreeMap, HashMap};

use super::ChunkKey;

struct Entry<V> {
    value: V,
    size: u64,
    /// Place in `by_use`.
    used: u64,
}

/// A map that knows which entry was used longest ago, and how many bytes its entries have.
pub(super) struct Lru<V> {
    entries: HashMap<ChunkKey, Entry<V>>,
    /// Keys by the number of their last use.
    by_use: BTreeMap<u64, ChunkKey>,
    uses: u64,
    bytes: u64,
}

impl<V> Default for Lru<V> {
    fn default() -> Self {
        Self { entries: HashMap::new(), by_use: BTreeMap::new(), uses: 0, bytes: 0 }
    }
}

impl<V> Lru<V> {
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Sum of the sizes.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) fn contains(&self, key: &ChunkKey) -> bool {
        self.entries.contains_key(key)
    }

    /// The value of a key, which becomes the one used last.
    pub(super) fn touch(&mut self, key: &ChunkKey) -> Option<&V> {
        let entry = self.entries.get_mut(key)?;
        self.by_use.remove(&entry.used);
        self.uses += 1;
        entry.used = self.uses;
        self.by_use.insert(self.uses, *key);
        Some(&entry.value)
    }

    /// Adds an entry as the one used last. It takes the place of an entry of the same key.
    pub(super) fn insert(&mut self, key: ChunkKey, value: V, size: u64) {
        self.remove(&key);
        self.uses += 1;
        self.by_use.insert(self.uses, key);
        self.entries.insert(key, Entry { value, size, used: self.uses });
        self.bytes += size;
    }

    /// Removes an entry. Returns its size.
    pub(super) fn remove(&mut self, key: &ChunkKey) -> Option<u64> {
        let entry = self.entries.remove(key)?;
        self.by_use.remove(&entry.used);
        self.bytes -= entry.size;
        Some(entry.size)
    }

    /// Removes the entry that was used longest ago. Returns its key and size.
    pub(super) fn pop_oldest(&mut self) -> Option<(ChunkKey, u64)> {
        let key = *self.by_use.first_key_value()?.1;
        Some((key, self.remove(&key)?))
    }
}
