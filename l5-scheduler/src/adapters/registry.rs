//! The adapters of a model by name: loaded, evicted, loaded again and unloaded while requests run.
//!
//! ```text
//! load     name + path -> weights; the name is known from here on
//! get      the weights for a request; an evicted adapter is read again from its path
//! unload   the name is unknown from here on; requests that have the weights keep them
//! ```
//!
//! At most [`AdapterOptions::max_cpu_loras`] adapters are in memory. For another one, the adapter that was used least
//! recently and that no request has is evicted: its name and path stay, its weights go. Weights that were unloaded or
//! replaced count until the last request that has them ends.
//!
//! A file is read outside of the lock, so other names are served meanwhile. What reads or unloads one name waits for
//! whatever else reads that name.

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::SystemTime;

use l1_tensor::Runtime;
use l2_model::ModelConfig;
use l2_model::adapter::LoraAdapter;

use super::{DEFAULT_MAX_CPU_LORAS, DEFAULT_MAX_LORA_RANK, RequestAdapter};
use crate::engine::EngineModel;

/// Maximum length of an adapter's name, in bytes.
pub const MAX_ADAPTER_NAME_BYTES: usize = 256;

/// Limits of a registry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdapterOptions {
    /// Maximum rank of an adapter: not above that of the engine.
    pub max_lora_rank: usize,
    /// Maximum number of adapters in memory, at least 1.
    pub max_cpu_loras: usize,
    /// Names that no adapter may have: those of the model.
    pub reserved_names: Vec<String>,
}

impl Default for AdapterOptions {
    fn default() -> Self {
        Self {
            max_lora_rank: DEFAULT_MAX_LORA_RANK,
            max_cpu_loras: DEFAULT_MAX_CPU_LORAS,
            reserved_names: Vec::new(),
        }
    }
}

/// Why an adapter cannot be loaded, used or unloaded.
#[derive(Debug, thiserror::Error)]
pub enum RegistryError {
    /// The name cannot be the name of an adapter.
    #[error("`{name}` cannot be the name of an adapter: {why}")]
    Name {
        /// The name, shortened.
        name: String,
        /// What is wrong with it.
        why: String,
    },
    /// An adapter of this name is loaded.
    #[error(
        "the LoRA adapter `{name}` has already been loaded: unload it first, or set `load_inplace` to replace it"
    )]
    AlreadyLoaded {
        /// Name of the adapter.
        name: String,
    },
    /// No adapter has this name.
    #[error("the LoRA adapter `{name}` does not exist: load it first")]
    NotFound {
        /// The name.
        name: String,
    },
    /// All adapters in memory are in use, and there may be no more of them.
    #[error(
        "no room for another LoRA adapter: requests use all {max} that may be in memory; try again later, or raise \
         --max-cpu-loras"
    )]
    Full {
        /// Maximum number of adapters in memory.
        max: usize,
    },
    /// The adapter cannot be read, or does not fit the model.
    #[error("the LoRA adapter `{name}` cannot be loaded: {why}")]
    Load {
        /// Name of the adapter.
        name: String,
        /// What is wrong with it.
        why: l2_model::Error,
    },
    /// An evicted adapter had to be read again, and its files are not those that were loaded.
    #[error("the LoRA adapter `{name}` has changed on disk ({}): load it again, with `load_inplace`", path.display())]
    Changed {
        /// Name of the adapter.
        name: String,
        /// Its directory.
        path: PathBuf,
    },
}

/// An adapter that can be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdapterInfo {
    /// Name of the adapter.
    pub name: String,
    /// Directory that it was loaded from.
    pub path: PathBuf,
    /// Sha256 of its files, in hexadecimal.
    pub digest: String,
    /// Maximum rank of its side terms.
    pub rank: usize,
    /// Size of its matrices in memory, in bytes.
    pub bytes: usize,
    /// Time of its load.
    pub loaded_at: SystemTime,
    /// Whether its weights are in memory: if not, the next request reads them again.
    pub resident: bool,
}

/// The adapters of a model. Clones are the same registry.
///
/// ```
/// use l5_scheduler::AdapterRegistry;
/// use l5_scheduler::adapters::{AdapterOptions, RegistryError};
/// use l5_scheduler::engine::EngineModel;
///
/// let tiny = concat!(env!("CARGO_MANIFEST_DIR"), "/../fixtures/tiny-llama");
/// let model = EngineModel::open(tiny.as_ref(), Default::default())?;
/// let registry = AdapterRegistry::new(&model, AdapterOptions::default());
/// let loaded = registry.load("sql", "no/such/directory".as_ref(), false);
/// assert!(matches!(loaded, Err(RegistryError::Load { .. })));
/// assert!(matches!(registry.get("sql"), Err(RegistryError::NotFound { .. })));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct AdapterRegistry(Arc<Shared>);

struct Shared {
    rt: Runtime,
    model: ModelConfig,
    options: AdapterOptions,
    state: Mutex<State>,
    /// Signals that a name is not read any more.
    read: Condvar,
}

#[derive(Default)]
struct State {
    entries: BTreeMap<String, Entry>,
    /// Names whose files are being read.
    busy: HashSet<String>,
    /// Number of adapters that are being read and have room reserved.
    reserved: usize,
    /// Weights that were unloaded or replaced while requests had them.
    retired: Vec<Weak<LoraAdapter>>,
    /// Number of uses so far: the clock of the eviction.
    uses: u64,
}

struct Entry {
    path: PathBuf,
    /// In hexadecimal.
    digest: String,
    rank: usize,
    bytes: usize,
    loaded_at: SystemTime,
    /// `None`: evicted.
    weights: Option<Arc<LoraAdapter>>,
    last_use: u64,
}

impl State {
    /// Reserves room for another adapter. Returns what was evicted for it, to be dropped outside of the lock; `None` if
    /// all are in use.
    fn reserve(&mut self, max: usize) -> Option<Vec<Arc<LoraAdapter>>> {
        self.retired.retain(|weights| weights.strong_count() > 0);
        let mut evicted = Vec::new();
        let resident = self.entries.values().filter(|entry| entry.weights.is_some()).count();
        let mut taken = resident + self.retired.len() + self.reserved;
        while taken >= max {
            // The registry's own reference is the only one: no request has it, and none can get it without the lock.
            let idle = |entry: &&mut Entry| {
                entry.weights.as_ref().is_some_and(|weights| Arc::strong_count(weights) == 1)
            };
            let oldest = self.entries.values_mut().filter(idle).min_by_key(|entry| entry.last_use);
            let Some(weights) = oldest.and_then(|entry| entry.weights.take()) else {
                // What was evicted for nothing is read again when it is needed.
                return None;
            };
            evicted.push(weights);
            taken -= 1;
        }
        self.reserved += 1;
        Some(evicted)
    }

    /// Keeps account of weights that have no name any more. Returns them, to be dropped outside of the lock.
    fn retire(&mut self, weights: Option<Arc<LoraAdapter>>) -> Option<Arc<LoraAdapter>> {
        if let Some(used) = weights.as_ref().filter(|weights| Arc::strong_count(weights) > 1) {
            self.retired.push(Arc::downgrade(used));
        }
        weights
    }

    fn tick(&mut self) -> u64 {
        self.uses += 1;
        self.uses
    }
}

/// A name whose files are being read, until this is dropped.
struct Reading<'a> {
    shared: &'a Shared,
    name: &'a str,
    /// Whether room is reserved for it.
    reserved: bool,
}

impl Reading<'_> {
    /// Reserves room for the adapter.
    fn reserve(&mut self) -> Result<(), RegistryError> {
        let max = self.shared.options.max_cpu_loras.max(1);
        let evicted = self.shared.lock().reserve(max);
        self.reserved = evicted.is_some();
        evicted.map(drop).ok_or(RegistryError::Full { max })
    }

    /// The room is taken from here on.
    fn take_room(&mut self, state: &mut State) {
        state.reserved -= usize::from(std::mem::take(&mut self.reserved));
    }
}

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.busy.remove(self.name);
        self.take_room(&mut state);
        drop(state);
        self.shared.read.notify_all();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until a name is read by nothing else.
    fn occupy<'a>(&'a self, name: &'a str) -> Reading<'a> {
        let mut state = self.lock();
        while state.busy.contains(name) {
            state = self.read.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.busy.insert(name.to_owned());
        Reading { shared: self, name, reserved: false }
    }

    fn open(&self, name: &str, path: &Path) -> Result<Arc<LoraAdapter>, RegistryError> {
        let opened = LoraAdapter::open(&self.rt, path, &self.model, self.options.max_lora_rank);
        opened.map(Arc::new).map_err(|why| RegistryError::Load { name: name.to_owned(), why })
    }

    fn check_name(&self, name: &str) -> Result<(), RegistryError> {
        let why = if name.is_empty() {
            "give it a name".to_owned()
        } else if name.len() > MAX_ADAPTER_NAME_BYTES {
            format!("it has {} bytes, the maximum is {MAX_ADAPTER_NAME_BYTES}", name.len())
        } else if name.chars().any(char::is_control) {
            "it has control characters".to_owned()
        } else if name.trim() != name {
            "it begins or ends with white space".to_owned()
        } else if self.options.reserved_names.iter().any(|own| own == name) {
            "it is a name of the model: choose another one".to_owned()
        } else {
            return Ok(());
        };
        let name = name.chars().filter(|c| !c.is_control()).take(64).collect();
        Err(RegistryError::Name { name, why })
    }
}

impl AdapterRegistry {
    /// Creates a registry without adapters, for a model. The engine of the model must allow adapters of this rank
    /// ([`EngineOptions::max_lora_rank`](crate::EngineOptions)).
    pub fn new(model: &EngineModel, options: AdapterOptions) -> Self {
        let (rt, model) = (model.rt.clone(), model.decoder.config().clone());
        let (state, read) = (Mutex::default(), Condvar::new());
        Self(Arc::new(Shared { rt, model, options, state, read }))
    }

    /// Limits of the registry.
    pub fn options(&self) -> &AdapterOptions {
        &self.0.options
    }

    /// Loads the adapter in a directory under a name, on the calling thread. `load_inplace`: replaces the adapter of that
    /// name, if there is one; requests that have the old one keep it. After an error every name has the adapter that it had,
    /// though others may have been evicted to make room.
    ///
    /// # Errors
    /// [`RegistryError`].
    pub fn load(
        &self,
        name: &str,
        path: &Path,
        load_inplace: bool,
    ) -> Result<RequestAdapter, RegistryError> {
        let shared = &*self.0;
        shared.check_name(name)?;
        let mut reading = shared.occupy(name);
        let known = shared.lock().entries.get(name).map(|entry| {
            // Weights that no request has make room for those that replace them.
            entry.weights.as_ref().is_some_and(|weights| Arc::strong_count(weights) == 1)
        });
        if known.is_some() && !load_inplace {
            return Err(RegistryError::AlreadyLoaded { name: name.to_owned() });
        }
        if known != Some(true) {
            reading.reserve()?;
        }
        let weights = shared.open(name, path)?;
        let mut state = shared.lock();
        let entry = Entry {
            path: path.to_owned(),
            digest: weights.digest_hex(),
            rank: weights.rank(),
            bytes: weights.bytes(),
            loaded_at: SystemTime::now(),
            weights: Some(weights.clone()),
            last_use: state.tick(),
        };
        let old = state.entries.insert(name.to_owned(), entry).and_then(|old| old.weights);
        let old = state.retire(old);
        reading.take_room(&mut state);
        drop(state);
        drop(old);
        Ok(RequestAdapter { name: name.to_owned(), weights })
    }

    /// Unloads the adapter of a name. Requests that have it keep its weights to their end.
    ///
    /// # Errors
    /// [`RegistryError::NotFound`].
    pub fn unload(&self, name: &str) -> Result<(), RegistryError> {
        let shared = &*self.0;
        let _reading = shared.occupy(name);
        let mut state = shared.lock();
        let Some(entry) = state.entries.remove(name) else {
            return Err(RegistryError::NotFound { name: name.to_owned() });
        };
        let old = state.retire(entry.weights);
        drop(state);
        drop(old);
        Ok(())
    }

    /// The adapter of a name, if it is in memory; `None`: it was evicted, and [`AdapterRegistry::get`] reads it again. It
    /// never waits for a file.
    ///
    /// # Errors
    /// [`RegistryError::NotFound`].
    pub fn get_resident(&self, name: &str) -> Result<Option<RequestAdapter>, RegistryError> {
        let mut state = self.0.lock();
        let now = state.tick();
        let Some(entry) = state.entries.get_mut(name) else {
            return Err(RegistryError::NotFound { name: name.to_owned() });
        };
        entry.last_use = now;
        let name = name.to_owned();
        Ok(entry.weights.clone().map(|weights| RequestAdapter { name, weights }))
    }

    /// The adapter of a name. One that was evicted is read again, on the calling thread.
    ///
    /// # Errors
    /// [`RegistryError`], but for [`RegistryError::AlreadyLoaded`] and [`RegistryError::Name`].
    pub fn get(&self, name: &str) -> Result<RequestAdapter, RegistryError> {
        if let Some(ready) = self.get_resident(name)? {
            return Ok(ready);
        }
        let shared = &*self.0;
        let mut reading = shared.occupy(name);
        // Another request may have read it meanwhile.
        if let Some(ready) = self.get_resident(name)? {
            return Ok(ready);
        }
        reading.reserve()?;
        let known =
            shared.lock().entries.get(name).map(|entry| (entry.path.clone(), entry.digest.clone()));
        let (path, digest) =
            known.ok_or_else(|| RegistryError::NotFound { name: name.to_owned() })?;
        let weights = shared.open(name, &path)?;
        let name = name.to_owned();
        if weights.digest_hex() != digest {
            return Err(RegistryError::Changed { name, path });
        }
        let mut state = shared.lock();
        if let Some(entry) = state.entries.get_mut(&name) {
            entry.weights = Some(weights.clone());
        }
        reading.take_room(&mut state);
        drop(state);
        Ok(RequestAdapter { name, weights })
    }

    /// Whether an adapter has this name.
    pub fn contains(&self, name: &str) -> bool {
        self.0.lock().entries.contains_key(name)
    }

    /// The adapter of a name.
    pub fn info(&self, name: &str) -> Option<AdapterInfo> {
        self.0.lock().entries.get(name).map(|entry| entry.info(name))
    }

    /// All adapters, in the order of their names.
    pub fn list(&self) -> Vec<AdapterInfo> {
        self.0.lock().entries.iter().map(|(name, entry)| entry.info(name)).collect()
    }

    /// Number of adapters whose weights are in memory, those included that have no name any more and that requests use.
    pub fn num_resident(&self) -> usize {
        let state = self.0.lock();
        let retired = state.retired.iter().filter(|weights| weights.strong_count() > 0).count();
        state.entries.values().filter(|entry| entry.weights.is_some()).count() + retired
    }
}

impl Entry {
    fn info(&self, name: &str) -> AdapterInfo {
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

impl std::fmt::Debug for AdapterRegistry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AdapterRegistry").field("adapters", &self.list()).finish_non_exhaustive()
    }
}
