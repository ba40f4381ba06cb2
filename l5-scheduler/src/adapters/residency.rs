//! Which adapters are in memory, and which are being read.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::{Arc, Weak};
use std::time::{Instant, SystemTime};

use l2_model::adapter::LoraAdapter;

use super::registry::AdapterInfo;

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
    /// Whether room is reserved for what is read.
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
    /// Evicts until there is room for another adapter. Returns what was evicted, to be dropped outside of the lock;
    /// `None` if all are in use.
    pub fn make_room(&mut self, max: usize) -> Option<Evicted> {
        self.retired.retain(|weights| weights.strong_count() > 0);
        let mut evicted = Vec::new();
        let mut taken = self.num_resident() + self.num_reserved();
        while taken >= max {
            let idle = self.entries.iter_mut().filter(|(_, entry)| is_idle(entry));
            let oldest = idle.min_by_key(|(_, entry)| entry.last_use);
            let Some((name, weights)) =
                oldest.and_then(|(name, entry)| Some((name.clone(), entry.weights.take()?)))
            else {
                // What was evicted for nothing is read again when it is needed.
                return None;
            };
            evicted.push((name, weights));
            taken -= 1;
        }
        Some(evicted)
    }

    /// Whether [`State::make_room`] would succeed.
    pub fn has_room(&self, max: usize) -> bool {
        let idle = self.entries.values().filter(|entry| is_idle(entry)).count();
        self.num_resident() + self.num_reserved() < max + idle
    }

    /// Number of adapters whose weights are in memory, those included that have no name any more and that requests use.
    pub fn num_resident(&self) -> usize {
        let retired = self.retired.iter().filter(|weights| weights.strong_count() > 0).count();
        self.entries.values().filter(|entry| entry.weights.is_some()).count() + retired
    }

    /// Number of adapters that are being read and have room reserved.
    fn num_reserved(&self) -> usize {
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
