//! Cache of compiled grammars.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use super::GuideError;

/// Statistics of the cache of compiled grammars.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheStats {
    /// Requests whose grammar was compiled already, or was being compiled.
    pub hits: u64,
    /// Compilations, including failed ones.
    pub compilations: u64,
    /// Grammars in the cache.
    pub kept: usize,
}

/// Least-recently-used cache of `capacity` values, fewer where they are large: a compiled grammar may take tens of
/// megabytes, however short its source is. Each value is made once, even if several threads ask for it at the same
/// time: one makes it and the others wait. A request for another key waits for none of them.
pub(super) struct Cache<T> {
    capacity: usize,
    /// Maximum number of bytes of all values and keys together.
    bytes: usize,
    weigh: fn(&T) -> usize,
    entries: Mutex<Entries<T>>,
    hits: AtomicU64,
    compilations: AtomicU64,
}

type Slot<T> = Arc<OnceLock<Result<Arc<T>, GuideError>>>;

struct Entries<T> {
    clock: u64,
    by_key: HashMap<String, Entry<T>>,
}

impl<T> Entries<T> {
    /// Number of bytes of all values and keys.
    fn bytes(&self) -> usize {
        self.by_key.values().map(|entry| entry.bytes).sum()
    }

    /// Evicts the least recently used value. Returns false if there is none.
    fn forget_oldest(&mut self) -> bool {
        let oldest = self.by_key.iter().min_by_key(|(_, e)| e.used).map(|(k, _)| k.clone());
        oldest.is_some_and(|oldest| self.by_key.remove(&oldest).is_some())
    }
}

struct Entry<T> {
    slot: Slot<T>,
    used: u64,
    /// Bytes of the key, and of the value once it is made.
    bytes: usize,
}

impl<T> Cache<T> {
    /// Creates a cache of at most `capacity` values, at least one, which take at most `bytes` together, as `weigh`
    /// computes.
    pub(super) fn new(capacity: usize, bytes: usize, weigh: fn(&T) -> usize) -> Self {
        Self {
            capacity: capacity.max(1),
            bytes,
            weigh,
            entries: Mutex::new(Entries { clock: 0, by_key: HashMap::new() }),
            hits: AtomicU64::new(0),
            compilations: AtomicU64::new(0),
        }
    }

    /// Value of `key`, which is made if it is not cached. Failures are not cached.
    pub(super) fn get(
        &self,
        key: String,
        make: impl FnOnce() -> Result<T, GuideError>,
    ) -> Result<Arc<T>, GuideError> {
        let slot = self.slot(&key);
        let mut made = false;
        let value = slot.get_or_init(|| {
            made = true;
            make().map(Arc::new)
        });
        let counter = if made { &self.compilations } else { &self.hits };
        counter.fetch_add(1, Ordering::Relaxed);
        if let (true, Ok(value)) = (made, value) {
            self.settle(&key, &slot, (self.weigh)(value));
        }
        if made && value.is_err() {
            let mut entries = self.lock();
            if entries.by_key.get(&key).is_some_and(|entry| Arc::ptr_eq(&entry.slot, &slot)) {
                entries.by_key.remove(&key);
            }
        }
        value.clone()
    }

    /// Value of `key`, if it is cached and made.
    pub(super) fn peek(&self, key: &str) -> Option<Arc<T>> {
        let mut entries = self.lock();
        entries.clock += 1;
        let used = entries.clock;
        let entry = entries.by_key.get_mut(key)?;
        let value = entry.slot.get()?.as_ref().ok()?.clone();
        entry.used = used;
        self.hits.fetch_add(1, Ordering::Relaxed);
        Some(value)
    }

    pub(super) fn stats(&self) -> CacheStats {
        CacheStats {
            hits: self.hits.load(Ordering::Relaxed),
            compilations: self.compilations.load(Ordering::Relaxed),
            kept: self.lock().by_key.len(),
        }
    }

    /// Slot of `key`, which becomes the most recently used one. A new slot may evict the least recently used one.
    fn slot(&self, key: &str) -> Slot<T> {
        let mut entries = self.lock();
        entries.clock += 1;
        let used = entries.clock;
        if let Some(entry) = entries.by_key.get_mut(key) {
            entry.used = used;
            return Arc::clone(&entry.slot);
        }
        // Reads all entries: there are a few dozen, and a compilation follows.
        while entries.by_key.len() >= self.capacity && entries.forget_oldest() {}
        let slot = Slot::default();
        let bytes = key.len();
        entries.by_key.insert(key.to_owned(), Entry { slot: Arc::clone(&slot), used, bytes });
        slot
    }

    /// Records the size of a value that was made: others are evicted until all fit, and it too if it is too large
    /// alone.
    fn settle(&self, key: &str, slot: &Slot<T>, bytes: usize) {
        let mut entries = self.lock();
        if let Some(entry) = entries.by_key.get_mut(key).filter(|e| Arc::ptr_eq(&e.slot, slot)) {
            entry.bytes = key.len() + bytes;
        }
        while entries.bytes() > self.bytes && entries.forget_oldest() {}
    }

    fn lock(&self) -> MutexGuard<'_, Entries<T>> {
        // Nothing under this lock can be left half done.
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
