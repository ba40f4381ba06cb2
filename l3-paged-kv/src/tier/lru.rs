//! Chunks in the order of their last use, with their sizes.

use std::collections::{BTreeMap, HashMap};

use super::ChunkKey;

struct Entry<V> {
    value: V,
    size: u64,
    /// Place in `by_use`.
    used: i64,
}

/// A map that knows which entry was used longest ago, and how many bytes its entries have.
pub(super) struct Lru<V> {
    entries: HashMap<ChunkKey, Entry<V>>,
    /// Keys by the number of their last use.
    by_use: BTreeMap<i64, ChunkKey>,
    uses: i64,
    /// Number of the entry that was inserted as the oldest one last.
    front: i64,
    bytes: u64,
}

impl<V> Default for Lru<V> {
    fn default() -> Self {
        Self { entries: HashMap::new(), by_use: BTreeMap::new(), uses: 0, front: 0, bytes: 0 }
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
        // exercise l3.lru
        self.by_use.remove(&entry.used);
        self.uses += 1;
        entry.used = self.uses;
        self.by_use.insert(self.uses, *key);
        Some(&entry.value)
        // end of exercise
    }

    /// Adds an entry as the one used last. It takes the place of an entry of the same key.
    pub(super) fn insert(&mut self, key: ChunkKey, value: V, size: u64) {
        self.uses += 1;
        self.insert_at(self.uses, key, value, size);
    }

    /// Adds an entry as the one used longest ago. It takes the place of an entry of the same key.
    pub(super) fn insert_oldest(&mut self, key: ChunkKey, value: V, size: u64) {
        self.front -= 1;
        self.insert_at(self.front, key, value, size);
    }

    fn insert_at(&mut self, used: i64, key: ChunkKey, value: V, size: u64) {
        self.remove(&key);
        self.by_use.insert(used, key);
        self.entries.insert(key, Entry { value, size, used });
        self.bytes += size;
    }

    /// Removes an entry. Returns its size.
    pub(super) fn remove(&mut self, key: &ChunkKey) -> Option<u64> {
        self.take(key).map(|(_, size)| size)
    }

    /// Removes an entry. Returns its value and size.
    pub(super) fn take(&mut self, key: &ChunkKey) -> Option<(V, u64)> {
        let entry = self.entries.remove(key)?;
        self.by_use.remove(&entry.used);
        self.bytes -= entry.size;
        Some((entry.value, entry.size))
    }

    /// The entry that was used longest ago.
    pub(super) fn oldest(&self) -> Option<(&ChunkKey, &V)> {
        let key = self.by_use.first_key_value()?.1;
        Some((key, &self.entries.get(key)?.value))
    }

    /// Removes the entry that was used longest ago. Returns its key and size.
    pub(super) fn pop_oldest(&mut self) -> Option<(ChunkKey, u64)> {
        let key = *self.by_use.first_key_value()?.1;
        Some((key, self.remove(&key)?))
    }
}
