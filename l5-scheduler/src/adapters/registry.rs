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
//! whatever else reads that name, until that read is past its deadline: a disk or a network that does not answer costs
//! the name [`AdapterOptions::load_timeout`], and no more.
//!
//! Loads, evictions and failures are logged where they happen, with the name of the adapter.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use l2_model::adapter::LoraAdapter;

use super::error::{RegistryError, log_text};
use super::residency::{Busy, Entry, State};
use super::{
    DEFAULT_LOAD_TIMEOUT_SECONDS, DEFAULT_MAX_ADAPTER_NAMES, DEFAULT_MAX_CPU_LORAS,
    DEFAULT_MAX_LORA_RANK, LOG, RequestAdapter,
};
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
    /// Maximum number of names, of adapters in memory and evicted ones.
    pub max_names: usize,
    /// Maximum time to read an adapter. A read that takes longer is dropped when it ends; others do not wait for it.
    pub load_timeout: Duration,
    /// Names that no adapter may have: those of the model.
    pub reserved_names: Vec<String>,
}

impl Default for AdapterOptions {
    fn default() -> Self {
        Self {
            max_lora_rank: DEFAULT_MAX_LORA_RANK,
            max_cpu_loras: DEFAULT_MAX_CPU_LORAS,
            max_names: DEFAULT_MAX_ADAPTER_NAMES,
            load_timeout: Duration::from_secs(DEFAULT_LOAD_TIMEOUT_SECONDS),
            reserved_names: Vec::new(),
        }
    }
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
    read: Box<Read>,
    options: AdapterOptions,
    state: Mutex<State>,
    /// Signals that a name is not read any more.
    ended: Condvar,
}

/// Reads the adapter in a directory.
type Read = dyn Fn(&Path) -> l2_model::Result<LoraAdapter> + Send + Sync;

/// A name whose files are being read, until this is dropped or its deadline is over.
struct Reading<'a> {
    shared: &'a Shared,
    name: &'a str,
    id: u64,
}

impl Reading<'_> {
    /// Reserves room for the adapter.
    fn reserve(&self) -> Result<(), RegistryError> {
        let max = self.shared.options.max_cpu_loras.max(1);
        let mut state = self.commit()?;
        let evicted = state.make_room(max).ok_or(RegistryError::Full { max })?;
        if let Some(busy) = state.busy.get_mut(self.name) {
            busy.reserved = true;
        }
        drop(state);
        for (name, weights) in evicted {
            let own = self.name;
            tracing::info!(
                target: LOG,
                "LoRA adapter `{name}` evicted from memory for `{own}`: the next request for it reads it again"
            );
            drop(weights);
        }
        Ok(())
    }

    /// The state, if this read is within its deadline: until the lock is released, what was read may be kept.
    fn commit(&self) -> Result<MutexGuard<'_, State>, RegistryError> {
        let state = self.shared.lock();
        let own = state.busy.get(self.name).filter(|busy| busy.id == self.id);
        match own {
            Some(busy) if Instant::now() < busy.deadline => Ok(state),
            _ => Err(self.shared.timed_out(self.name)),
        }
    }
}

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        if state.busy.get(self.name).is_some_and(|busy| busy.id == self.id) {
            state.busy.remove(self.name);
        }
        drop(state);
        self.shared.ended.notify_all();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn timed_out(&self, name: &str) -> RegistryError {
        let seconds = self.options.load_timeout.as_secs_f64();
        RegistryError::TimedOut { name: name.to_owned(), seconds }
    }

    /// Waits until a name is read by nothing else, for no longer than a read may take. The read that begins then has
    /// time of its own.
    fn occupy<'a>(&'a self, name: &'a str) -> Result<Reading<'a>, RegistryError> {
        let until = Instant::now() + self.options.load_timeout;
        let mut state = self.lock();
        loop {
            let now = Instant::now();
            let other = state.busy.get(name).map(|busy| busy.deadline);
            let Some(other) = other.filter(|other| now < *other) else { break };
            if now >= until {
                return Err(self.timed_out(name));
            }
            let wait = self.ended.wait_timeout(state, other.min(until) - now);
            state = wait.unwrap_or_else(PoisonError::into_inner).0;
        }
        let (id, deadline) = (state.tick(), Instant::now() + self.options.load_timeout);
        state.busy.insert(name.to_owned(), Busy { id, deadline, reserved: false });
        Ok(Reading { shared: self, name, id })
    }

    fn open(&self, name: &str, path: &Path) -> Result<Arc<LoraAdapter>, RegistryError> {
        let opened = (self.read)(path);
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

    /// Fails if a new name would be one too many.
    fn check_count(&self, state: &State, name: &str) -> Result<(), RegistryError> {
        let max = self.options.max_names;
        match state.entries.contains_key(name) || state.entries.len() < max {
            true => Ok(()),
            false => Err(RegistryError::TooMany { max }),
        }
    }
}

impl AdapterRegistry {
    /// Creates a registry without adapters, for a model. The engine of the model must allow adapters of this rank
    /// ([`EngineOptions::max_lora_rank`](crate::EngineOptions)).
    pub fn new(model: &EngineModel, options: AdapterOptions) -> Self {
        let (rt, config) = (model.rt.clone(), model.decoder.config().clone());
        let max_rank = options.max_lora_rank;
        let read = move |path: &Path| LoraAdapter::open(&rt, path, &config, max_rank);
        Self::reading(Box::new(read), options)
    }

    /// A registry whose adapters are read by `read`.
    fn reading(read: Box<Read>, options: AdapterOptions) -> Self {
        let (state, ended) = (Mutex::default(), Condvar::new());
        Self(Arc::new(Shared { read, options, state, ended }))
    }

    /// Limits of the registry.
    pub fn options(&self) -> &AdapterOptions {
        &self.0.options
    }

    /// Loads the adapter in a directory under a name, on the calling thread. `load_inplace`: replaces the adapter of that
    /// name, if there is one; requests that have the old one keep it. After an error every name has the adapter that it had,
    /// though others may have been evicted to make room.
    ///
    /// An adapter that is replaced stays in memory until the new one is read, so that its requests do not wait for
    /// that. If no request has it, no room is made for the other one: for that time one adapter more than the maximum
    /// may be in memory.
    ///
    /// # Errors
    /// [`RegistryError`].
    pub fn load(
        &self,
        name: &str,
        path: &Path,
        load_inplace: bool,
    ) -> Result<RequestAdapter, RegistryError> {
        let loaded = self.load_quietly(name, path, load_inplace);
        match &loaded {
            Ok(own) => {
                let (rank, digest) = (own.weights.rank(), own.weights.digest_hex());
                tracing::info!(
                    target: LOG,
                    "LoRA adapter `{name}` loaded from {path:?}: rank {rank}, sha256 {digest}"
                );
            }
            Err(why) => {
                let (path, why) = (log_text(&path.display()), log_text(why));
                tracing::warn!(target: LOG, "LoRA adapter not loaded from \"{path}\": {why}");
            }
        }
        loaded
    }

    fn load_quietly(
        &self,
        name: &str,
        path: &Path,
        load_inplace: bool,
    ) -> Result<RequestAdapter, RegistryError> {
        let shared = &*self.0;
        shared.check_name(name)?;
        let reading = shared.occupy(name)?;
        let state = shared.lock();
        shared.check_count(&state, name)?;
        let known = state.is_unused(name);
        drop(state);
        if known.is_some() && !load_inplace {
            return Err(RegistryError::AlreadyLoaded { name: name.to_owned() });
        }
        // Weights that no request has make room for those that replace them.
        if known != Some(true) {
            reading.reserve()?;
        }
        let weights = shared.open(name, path)?;
        let mut state = reading.commit()?;
        // Others may have been loaded meanwhile.
        shared.check_count(&state, name)?;
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
        state.busy.remove(name);
        drop(state);
        drop(old);
        Ok(RequestAdapter { name: name.to_owned(), weights })
    }

    /// Unloads the adapter of a name. Requests that have it keep its weights to their end.
    ///
    /// # Errors
    /// [`RegistryError::NotFound`]; [`RegistryError::TimedOut`] while its files are being read.
    pub fn unload(&self, name: &str) -> Result<(), RegistryError> {
        let shared = &*self.0;
        let _reading = shared.occupy(name)?;
        let mut state = shared.lock();
        let Some(entry) = state.entries.remove(name) else {
            return Err(RegistryError::NotFound { name: name.to_owned() });
        };
        let old = state.retire(entry.weights);
        drop(state);
        drop(old);
        tracing::info!(target: LOG, "LoRA adapter `{name}` unloaded");
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
    /// [`RegistryError`], but for those of [`AdapterRegistry::load`] alone: `AlreadyLoaded`, `Name` and `TooMany`.
    pub fn get(&self, name: &str) -> Result<RequestAdapter, RegistryError> {
        if let Some(ready) = self.get_resident(name)? {
            return Ok(ready);
        }
        let read = self.read_again(name);
        match &read {
            Ok(_) => tracing::info!(target: LOG, "LoRA adapter `{name}` read again for a request"),
            // Requests wait for room, and the name is the request's.
            Err(RegistryError::Full { .. } | RegistryError::NotFound { .. }) => {}
            Err(why) => {
                tracing::warn!(target: LOG, "LoRA adapter not read again: {}", log_text(why));
            }
        }
        read
    }

    fn read_again(&self, name: &str) -> Result<RequestAdapter, RegistryError> {
        let shared = &*self.0;
        let reading = shared.occupy(name)?;
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
        if weights.digest_hex() != digest {
            return Err(RegistryError::Changed { name: name.to_owned(), path });
        }
        let mut state = reading.commit()?;
        if let Some(entry) = state.entries.get_mut(name) {
            entry.weights = Some(weights.clone());
        }
        state.busy.remove(name);
        drop(state);
        Ok(RequestAdapter { name: name.to_owned(), weights })
    }

    /// Whether there is room for another adapter in memory: there are fewer than the maximum, or no request has one of
    /// them.
    pub fn has_room(&self) -> bool {
        self.0.lock().has_room(self.0.options.max_cpu_loras.max(1))
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
        self.0.lock().num_resident()
    }
}

impl std::fmt::Debug for AdapterRegistry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AdapterRegistry").field("adapters", &self.list()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
