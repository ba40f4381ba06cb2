//! Which adapters are in memory, and which are being read.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::{Arc, Weak};
use std::time::{Instant, SystemTime};

use l2_model::adapter::LoraAdapter;

use super::registry::AdapterInfo;
use super::{RegistryError, RequestAdapter};

#[derive(Default)]
pub(super) struct State {
    pub entries: BTreeMap<String, Entry>,
    /// Names whose files are being read.
    pub busy: HashMap<String, Busy>,
    /// Weights that were unloaded or replaced while requests had them.
    retired: Vec<Weak<LoraAdapter>>,
    /// Number of uses so far: the clock of the eviction.
    uses: u64,
}

pub(super) struct Entry {
    pub path: PathBuf,
    /// In hexadecimal.
    pub digest: String,
    pub rank: usize,
    pub bytes: usize,
    pub loaded_at: SystemTime,
    /// `None`: evicted.
    pub weights: Option<Arc<LoraAdapter>>,
    pub last_use: u64,
}

/// A read of an adapter's files. Past its deadline it counts no more: what it reads is dropped, and its name and its
/// room are free.
pub(super) struct Busy {
    /// Tells it from a later read of the same name.
    pub id: u64,
    pub deadline: Instant,
    /// Whether what is read has room of its own. If not, it replaces weights that no request has.
    pub reserved: bool,
}

/// Weights that were taken out of memory, with the names of their adapters.
pub(super) type Evicted = Vec<(String, Arc<LoraAdapter>)>;

/// Whether no request has the weights: the registry's own reference is the only one, and none can get it without the
/// lock.
fn is_idle(entry: &Entry) -> bool {
    entry.weights.as_ref().is_some_and(|weights| Arc::strong_count(weights) == 1)
}

impl State {
    /// Evicts until no more adapters than the maximum are in memory, or requests have all of them: first those that
    /// were used least recently. Returns what was evicted, to be dropped outside of the lock.
    pub fn trim(&mut self, max: usize) -> Evicted {
        self.retired.retain(|weights| weights.strong_count() > 0);
        let mut evicted = Vec::new();
        for _ in max..self.num_resident() {
            let idle = self.entries.iter_mut().filter(|(_, entry)| is_idle(entry));
            let oldest = idle.min_by_key(|(_, entry)| entry.last_use);
            let oldest =
                oldest.and_then(|(name, entry)| Some((name.clone(), entry.weights.take()?)));
            evicted.extend(oldest);
        }
        evicted
    }

    /// Whether a read may begin whose adapter needs room: those that requests have and those that are read into room of
    /// their own are fewer than the maximum.
    pub fn has_room(&self, max: usize) -> bool {
        self.num_used() + self.num_reserved() < max
    }

    /// Number of adapters that requests have, those included that have no name any more.
    pub fn num_used(&self) -> usize {
        self.num_resident() - self.entries.values().filter(|entry| is_idle(entry)).count()
    }

    /// Whether the files of this name are being read, and the read is within its deadline.
    pub fn is_busy(&self, name: &str) -> bool {
        self.busy.get(name).is_some_and(|busy| Instant::now() < busy.deadline)
    }

    /// The first deadline of the reads that are within theirs.
    pub fn next_deadline(&self) -> Option<Instant> {
        let now = Instant::now();
        self.busy.values().map(|busy| busy.deadline).filter(|deadline| now < *deadline).min()
    }

    /// Number of adapters whose weights are in memory, those included that have no name any more and that requests use.
    pub fn num_resident(&self) -> usize {
        let retired = self.retired.iter().filter(|weights| weights.strong_count() > 0).count();
        self.entries.values().filter(|entry| entry.weights.is_some()).count() + retired
    }

    /// Number of adapters that are being read and have room reserved.
    pub fn num_reserved(&self) -> usize {
        let now = Instant::now();
        self.busy.values().filter(|busy| busy.reserved && now < busy.deadline).count()
    }

    /// Keeps account of weights that have no name any more. Returns them, to be dropped outside of the lock.
    pub fn retire(&mut self, weights: Option<Arc<LoraAdapter>>) -> Option<Arc<LoraAdapter>> {
        if let Some(used) = weights.as_ref().filter(|weights| Arc::strong_count(weights) > 1) {
            self.retired.push(Arc::downgrade(used));
        }
        weights
    }

    /// The adapter of a name; `None`: it was evicted.
    pub fn resident(&mut self, name: &str) -> Result<Option<RequestAdapter>, RegistryError> {
        let now = self.tick();
        let Some(entry) = self.entries.get_mut(name) else {
            return Err(RegistryError::NotFound { name: name.to_owned() });
        };
        entry.last_use = now;
        let name = name.to_owned();
        Ok(entry.weights.clone().map(|weights| RequestAdapter { name, weights }))
    }

    pub fn tick(&mut self) -> u64 {
        self.uses += 1;
        self.uses
    }

    /// Whether no request has the weights of this name, which are in memory. `None`: the name is unknown.
    pub fn is_unused(&self, name: &str) -> Option<bool> {
        self.entries.get(name).map(is_idle)
    }
}

impl Entry {
    pub fn info(&self, name: &str) -> AdapterInfo {
        AdapterInfo {
            name: name.to_owned(),
            path: self.path.clone(),
            digest: self.digest.clone(),
            rank: self.rank,
            bytes: self.bytes,
            loaded_at: self.loaded_at,
            resident: self.weights.is_some(),
        }
    }
}
