//! What was compiled lately, for threads that want it at the same time.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use super::GuideError;

/// What a cache did so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheStats {
    /// Requests that found their grammar compiled, or being compiled.
    pub hits: u64,
    /// Grammars compiled, those that failed included.
    pub compilations: u64,
    /// Grammars kept.
    pub kept: usize,
}

/// A map of the `capacity` things that were asked for last, fewer where they are large: a compiled grammar may take tens of
/// megabytes, however short its source is. Each is made once, also when several threads ask for it at the same time: one
/// makes it and the others wait for that one. A request for something else waits for none of them.
pub(super) struct Cache<T> {
    capacity: usize,
    /// Maximum number of bytes of all things and keys together.
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
    /// Bytes of all things and keys.
    fn bytes(&self) -> usize {
        self.by_key.values().map(|entry| entry.bytes).sum()
    }

    /// Forget the one that was not asked for for longest. False if there is none.
    fn forget_oldest(&mut self) -> bool {
        let oldest = self.by_key.iter().min_by_key(|(_, e)| e.used).map(|(k, _)| k.clone());
        oldest.is_some_and(|oldest| self.by_key.remove(&oldest).is_some())
    }
}

struct Entry<T> {
    slot: Slot<T>,
    used: u64,
    /// Of its key, and of what it stands for once that is made.
    bytes: usize,
}

impl<T> Cache<T> {
    /// A cache of at most `capacity` things, at least one, which take at most `bytes` together as `weigh` tells.
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

    /// What `key` stands for; made if it is not there. What failed is not kept.
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

    /// What `key` stands for, if it is there and made.
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

    /// The place of `key`, which is now the one used last. A new one takes the place of the one not used for longest.
    fn slot(&self, key: &str) -> Slot<T> {
        let mut entries = self.lock();
        entries.clock += 1;
        let used = entries.clock;
        if let Some(entry) = entries.by_key.get_mut(key) {
            entry.used = used;
            return Arc::clone(&entry.slot);
        }
        // Walks over all of them: there are a few dozen, and a compilation follows.
        while entries.by_key.len() >= self.capacity && entries.forget_oldest() {}
        let slot = Slot::default();
        let bytes = key.len();
        entries.by_key.insert(key.to_owned(), Entry { slot: Arc::clone(&slot), used, bytes });
        slot
    }

    /// A thing was made and takes so many bytes: others go until all fit, and it too if it is too large alone.
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
