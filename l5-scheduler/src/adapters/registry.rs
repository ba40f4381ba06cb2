//! The adapters of a model by name: loaded, evicted, loaded again and unloaded while requests run.
//!
//! ```text
//! load     name + path -> weights; the name is known from here on
//! get      the weights for a request; an evicted adapter is read again from its path
//! unload   the name is unknown from here on; requests that have the weights keep them
//! ```
//!
//! At most [`AdapterOptions::max_cpu_loras`] adapters are in memory, and what is being read (`read.rs` has the bound).
//! For another one, the adapter that was used least recently and that no request has is evicted: its name and path
//! stay, its weights go. Weights that were unloaded or replaced count until the last request that has them ends.
//!
//! A file is read outside of the lock, so other names are served meanwhile. What reads or unloads one name waits for
//! whatever else reads that name, until that read is past its deadline: a disk or a network that does not answer costs
//! the name [`AdapterOptions::load_timeout`], and no more.
//!
//! [`AdapterRegistry::load`] and [`AdapterRegistry::get`] wait on the calling thread. [`AdapterRegistry::begin`] does
//! not wait: a server keeps a queue of its own.
//!
//! Loads, evictions and failures are logged where they happen, with the name of the adapter.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use l2_model::adapter::LoraAdapter;

use super::error::RegistryError;
use super::read::{Begun, ReadFor, drop_evicted, log_not_loaded};
use super::residency::State;
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

pub(super) struct Shared {
    read: Box<Read>,
    pub options: AdapterOptions,
    state: Mutex<State>,
    /// Signals that a name is not read any more.
    pub ended: Condvar,
}

/// Reads the adapter in a directory.
type Read = dyn Fn(&Path) -> l2_model::Result<LoraAdapter> + Send + Sync;

impl Shared {
    pub fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Maximum number of adapters in memory.
    pub fn max(&self) -> usize {
        self.options.max_cpu_loras.max(1)
    }

    pub fn timed_out(&self, name: &str) -> RegistryError {
        let seconds = self.options.load_timeout.as_secs_f64();
        RegistryError::TimedOut { name: name.to_owned(), seconds }
    }

    /// Waits until a read ends or is past its deadline, but not beyond `until`. `None`: that is over.
    fn wait<'a>(
        &self,
        state: MutexGuard<'a, State>,
        until: Instant,
    ) -> Option<MutexGuard<'a, State>> {
        let left = until.checked_duration_since(Instant::now()).filter(|left| !left.is_zero())?;
        let next = state.next_deadline().map(|next| next.saturating_duration_since(Instant::now()));
        let waited = self.ended.wait_timeout(state, next.map_or(left, |next| next.min(left)));
        Some(waited.unwrap_or_else(PoisonError::into_inner).0)
    }

    pub fn open(&self, name: &str, path: &Path) -> Result<Arc<LoraAdapter>, RegistryError> {
        let opened = (self.read)(path);
        opened.map(Arc::new).map_err(|why| RegistryError::load(name, why))
    }

    pub fn check_name(&self, name: &str) -> Result<(), RegistryError> {
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
    pub fn check_count(&self, state: &State, name: &str) -> Result<(), RegistryError> {
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
        Self::reading(read, options)
    }

    /// A registry whose adapters are read by `read`, from what it finds in a directory.
    pub fn reading(
        read: impl Fn(&Path) -> l2_model::Result<LoraAdapter> + Send + Sync + 'static,
        options: AdapterOptions,
    ) -> Self {
        let (read, state, ended) = (Box::new(read), Mutex::default(), Condvar::new());
        Self(Arc::new(Shared { read, options, state, ended }))
    }

    /// Limits of the registry.
    pub fn options(&self) -> &AdapterOptions {
        &self.0.options
    }

    /// Begins a read, and waits for nothing: no file is touched, and only idle adapters above the maximum are evicted.
    /// `may_reserve`: whether it may have room of its own; if not, it can only replace weights that no request has.
    ///
    /// # Errors
    /// [`RegistryError`], but for `Full`, `TimedOut`, and those of the files.
    pub fn begin(
        &self,
        name: &str,
        what: ReadFor<'_>,
        may_reserve: bool,
    ) -> Result<Begun, RegistryError> {
        let shared = &self.0;
        let mut state = shared.lock();
        let evicted = state.trim(shared.max());
        let begun = shared.begin(&mut state, name, what, may_reserve);
        drop(state);
        drop_evicted(evicted, name);
        if let (Err(why), ReadFor::Load { path, .. }) = (&begun, what) {
            log_not_loaded(path, why);
        }
        begun
    }

    /// Loads the adapter in a directory under a name, on the calling thread. `load_inplace`: replaces the adapter of
    /// that name, if there is one; requests that have the old one keep it. After an error every name has the adapter
    /// that it had, and none was evicted.
    ///
    /// An adapter that is replaced stays in memory until the new one is read, so that its requests do not wait for
    /// that. It waits while others are read, for no longer than a read may take, and not for requests.
    ///
    /// # Errors
    /// [`RegistryError`].
    pub fn load(
        &self,
        name: &str,
        path: &Path,
        load_inplace: bool,
    ) -> Result<RequestAdapter, RegistryError> {
        self.read_waiting(name, ReadFor::Load { path, load_inplace })
    }

    /// Reads on the calling thread, once no other read has the name, or the room.
    fn read_waiting(&self, name: &str, what: ReadFor<'_>) -> Result<RequestAdapter, RegistryError> {
        let (shared, max) = (&self.0, self.0.max());
        let until = Instant::now() + shared.options.load_timeout;
        let mut evicted = Vec::new();
        let begun = {
            let mut state = shared.lock();
            loop {
                evicted.extend(state.trim(max));
                let begun = shared.begin(&mut state, name, what, true);
                let waits = match &begun {
                    Ok(Begun::NameBusy) => true,
                    Ok(Begun::NoRoom) => state.num_reserved() > 0,
                    _ => false,
                };
                if !waits {
                    break begun;
                }
                match shared.wait(state, until) {
                    Some(waited) => state = waited,
                    None => break begun,
                }
            }
        };
        drop_evicted(evicted, name);
        let why = match begun {
            Ok(Begun::Ready(ready)) => return Ok(ready),
            Ok(Begun::Read(read)) => return read.read(),
            Ok(Begun::NameBusy) => shared.timed_out(name),
            Ok(Begun::NoRoom) => RegistryError::Full { max },
            Err(why) => why,
        };
        if let ReadFor::Load { path, .. } = what {
            log_not_loaded(path, &why);
        }
        Err(why)
    }

    /// Unloads the adapter of a name. Requests that have it keep its weights to their end.
    ///
    /// # Errors
    /// [`RegistryError::NotFound`]; [`RegistryError::TimedOut`] while its files are being read.
    pub fn unload(&self, name: &str) -> Result<(), RegistryError> {
        let shared = &*self.0;
        let until = Instant::now() + shared.options.load_timeout;
        let mut state = shared.lock();
        while state.is_busy(name) {
            state = shared.wait(state, until).ok_or_else(|| shared.timed_out(name))?;
        }
        let Some(entry) = state.entries.remove(name) else {
            return Err(RegistryError::NotFound { name: name.to_owned() });
        };
        let old = state.retire(entry.weights);
        drop(state);
        drop(old);
        tracing::info!(target: LOG, "LoRA adapter `{name}` unloaded");
        Ok(())
    }

    /// The adapter of a name, if it is in memory; `None`: it was evicted, and [`AdapterRegistry::get`] reads it again.
    /// It never waits for a file.
    ///
    /// # Errors
    /// [`RegistryError::NotFound`].
    pub fn get_resident(&self, name: &str) -> Result<Option<RequestAdapter>, RegistryError> {
        self.0.lock().resident(name)
    }

    /// The adapter of a name. One that was evicted is read again, on the calling thread.
    ///
    /// # Errors
    /// [`RegistryError`], but for those of [`AdapterRegistry::load`] alone: `AlreadyLoaded`, `Name` and `TooMany`.
    pub fn get(&self, name: &str) -> Result<RequestAdapter, RegistryError> {
        self.read_waiting(name, ReadFor::Use)
    }

    /// Whether another adapter can be read: there are fewer than the maximum, or no request has one of them.
    pub fn has_room(&self) -> bool {
        self.0.lock().has_room(self.0.max())
    }

    /// Whether requests use as many adapters as may be in memory.
    pub fn requests_use_all(&self) -> bool {
        self.0.lock().num_used() >= self.0.max()
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
