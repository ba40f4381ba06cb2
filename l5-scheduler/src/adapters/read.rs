//! One read of an adapter's files: from the moment at which it may begin to the adapter in memory.
//!
//! ```text
//! begin   the name is taken and room is reserved; nothing is evicted, no file is touched    under the lock
//! read    the files are read and checked                                                    outside of it
//! commit  the adapter goes in, and idle ones go if there are more than the maximum          under the lock
//! ```
//!
//! **A read that fails evicts nothing**, because the others stay until the new adapter goes in.
//!
//! **The bound.** A read begins only while requests and other reads have less than the maximum, and after idle adapters
//! above the maximum were evicted. An idle adapter stays in memory during the read, and a request may take it: then
//! nothing can be evicted for what was read, and it goes in beside. So adapters in memory and reads in flight together
//! are at most the maximum and the number of reads in flight, which the callers bound. What is above the maximum is
//! evicted once no request has it: when another read begins or ends.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, MutexGuard};
use std::time::{Instant, SystemTime};

use l2_model::adapter::LoraAdapter;

use super::error::{RegistryError, log_text};
use super::registry::Shared;
use super::residency::{Busy, Entry, Evicted, State};
use super::{LOG, RequestAdapter};

/// What an adapter is read for.
#[derive(Clone, Copy, Debug)]
pub enum ReadFor<'a> {
    /// It is loaded under its name.
    Load {
        /// Directory of its files.
        path: &'a Path,
        /// Whether it replaces the adapter of that name, if there is one.
        load_inplace: bool,
    },
    /// A request uses it. One that was evicted is read again.
    Use,
}

/// Whether a read can begin.
#[derive(Debug)]
pub enum Begun {
    /// There is nothing to read: the adapter is in memory.
    Ready(RequestAdapter),
    /// It can.
    Read(AdapterRead),
    /// Not while another read of the same name is within its deadline.
    NameBusy,
    /// Not while requests and other reads have all the room.
    NoRoom,
}

/// A read that has begun: its name is taken, and its room is reserved, until this is dropped or its deadline is over.
pub struct AdapterRead {
    shared: Arc<Shared>,
    name: String,
    id: u64,
    path: PathBuf,
    /// Digest of the files that were loaded, if they are read again.
    digest: Option<String>,
}

impl Shared {
    /// Begins a read. `may_reserve`: whether it may have room of its own.
    pub(super) fn begin(
        self: &Arc<Self>,
        state: &mut State,
        name: &str,
        what: ReadFor<'_>,
        may_reserve: bool,
    ) -> Result<Begun, RegistryError> {
        let unused = state.is_unused(name);
        let (path, digest) = match what {
            ReadFor::Use => match (state.resident(name)?, state.entries.get(name)) {
                (None, Some(evicted)) => (evicted.path.clone(), Some(evicted.digest.clone())),
                (Some(ready), _) => return Ok(Begun::Ready(ready)),
                (None, None) => {
                    return Err(RegistryError::NotFound { name: name.to_owned() });
                }
            },
            ReadFor::Load { path, .. } => {
                self.check_name(name)?;
                (path.to_owned(), None)
            }
        };
        if state.is_busy(name) {
            return Ok(Begun::NameBusy);
        }
        if let ReadFor::Load { load_inplace, .. } = what {
            self.check_count(state, name)?;
            if unused.is_some() && !load_inplace {
                return Err(RegistryError::AlreadyLoaded { name: name.to_owned() });
            }
        }
        // Weights that no request has make room for those that replace them.
        let reserved = unused != Some(true);
        if reserved && !(may_reserve && state.has_room(self.max())) {
            return Ok(Begun::NoRoom);
        }
        let (id, deadline) = (state.tick(), Instant::now() + self.options.load_timeout);
        state.busy.insert(name.to_owned(), Busy { id, deadline, reserved });
        let (shared, name) = (self.clone(), name.to_owned());
        Ok(Begun::Read(AdapterRead { shared, name, id, path, digest }))
    }
}

impl AdapterRead {
    /// Name of the adapter.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Reads the files on the calling thread, and takes the adapter into memory. After an error every name has the
    /// adapter that it had, and none was evicted.
    ///
    /// # Errors
    /// [`RegistryError`].
    pub fn read(self) -> Result<RequestAdapter, RegistryError> {
        let read = self.read_quietly();
        let (name, path, loads) = (&self.name, &self.path, self.digest.is_none());
        match &read {
            Ok((own, replaced)) if loads => {
                let (rank, digest) = (own.weights.rank(), own.weights.digest_hex());
                let replaces =
                    replaced.as_ref().map(|old| format!("; it replaces that of sha256 {old}"));
                let replaces = replaces.unwrap_or_default();
                tracing::info!(
                    target: LOG,
                    "LoRA adapter `{name}` loaded from {path:?}: rank {rank}, sha256 {digest}{replaces}"
                );
            }
            Ok(_) => tracing::info!(target: LOG, "LoRA adapter `{name}` read again for a request"),
            Err(why) if loads => log_not_loaded(path, why),
            Err(why) => {
                tracing::warn!(target: LOG, "LoRA adapter not read again: {}", log_text(why));
            }
        }
        read.map(|(own, _)| own)
    }

    /// Returns the digest of the adapter that a load replaced, too.
    fn read_quietly(&self) -> Result<(RequestAdapter, Option<String>), RegistryError> {
        let (shared, name, path) = (&*self.shared, &self.name, &self.path);
        let weights = shared.open(name, path)?;
        if self.digest.as_ref().is_some_and(|known| *known != weights.digest_hex()) {
            return Err(RegistryError::Changed { name: name.clone(), path: path.clone() });
        }
        let mut state = self.commit()?;
        let mut replaced = None;
        let old = match &self.digest {
            None => {
                // Others may have been loaded meanwhile.
                shared.check_count(&state, name)?;
                let entry = self.entry(&weights, state.tick());
                let old = state.entries.insert(name.clone(), entry);
                let old = old.and_then(|old| {
                    replaced = Some(old.digest);
                    old.weights
                });
                state.retire(old)
            }
            Some(_) => {
                let entry = state.entries.get_mut(name);
                entry.and_then(|entry| entry.weights.replace(weights.clone()))
            }
        };
        state.busy.remove(name);
        // The new one is not idle: this function has it.
        let evicted = state.trim(shared.max());
        drop(state);
        drop(old);
        drop_evicted(evicted, name);
        Ok((RequestAdapter { name: name.clone(), weights }, replaced))
    }

    fn entry(&self, weights: &Arc<LoraAdapter>, last_use: u64) -> Entry {
        Entry {
            path: self.path.clone(),
            digest: weights.digest_hex(),
            rank: weights.rank(),
            bytes: weights.bytes(),
            loaded_at: SystemTime::now(),
            weights: Some(weights.clone()),
            last_use,
        }
    }

    /// The state, if this read is within its deadline: until the lock is released, what was read may be kept.
    fn commit(&self) -> Result<MutexGuard<'_, State>, RegistryError> {
        let state = self.shared.lock();
        let own = state.busy.get(&self.name).filter(|busy| busy.id == self.id);
        match own {
            Some(busy) if Instant::now() < busy.deadline => Ok(state),
            _ => Err(self.shared.timed_out(&self.name)),
        }
    }
}

impl fmt::Debug for AdapterRead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, path) = (&self.name, &self.path);
        f.debug_struct("AdapterRead")
            .field("name", name)
            .field("path", path)
            .finish_non_exhaustive()
    }
}

impl Drop for AdapterRead {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        if state.busy.get(&self.name).is_some_and(|busy| busy.id == self.id) {
            state.busy.remove(&self.name);
        }
        drop(state);
        self.shared.ended.notify_all();
    }
}

/// Drops what was evicted for an adapter.
pub(super) fn drop_evicted(evicted: Evicted, own: &str) {
    for (name, weights) in evicted {
        tracing::info!(
            target: LOG,
            "LoRA adapter `{name}` evicted from memory for `{own}`: the next request for it reads it again"
        );
        drop(weights);
    }
}

/// Logs a failed load: information if its name, path or files are wrong, a warning if this process has no room or time.
pub(super) fn log_not_loaded(path: &Path, why: &RegistryError) {
    let (path, text) = (log_text(&path.display()), log_text(why));
    match why.is_of_the_call() {
        true => tracing::info!(target: LOG, "LoRA adapter not loaded from \"{path}\": {text}"),
        false => tracing::warn!(target: LOG, "LoRA adapter not loaded from \"{path}\": {text}"),
    }
}
