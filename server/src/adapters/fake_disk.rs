//! Directories of adapters that a test makes fine, bad or stuck.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use l2_model::adapter::LoraAdapter;
use l5_scheduler::AdapterRegistry;
use l5_scheduler::adapters::AdapterOptions;
use l5_scheduler::engine::EngineModel;

/// What a read of a directory does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Directory {
    /// It gives the adapter of a fixture.
    #[default]
    Fine,
    /// It fails.
    Bad,
    /// It fails for want of memory.
    NoMemory,
    /// It waits until the directory is another one.
    Stuck,
}

/// All directories, which are fine at first. Clones are the same disk.
#[derive(Clone, Default)]
pub struct Disk(Arc<(Mutex<HashMap<PathBuf, Directory>>, Condvar)>);

impl Disk {
    fn lock(&self) -> MutexGuard<'_, HashMap<PathBuf, Directory>> {
        self.0.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes a directory.
    pub fn set(&self, path: &str, directory: Directory) {
        self.lock().insert(path.into(), directory);
        self.0.1.notify_all();
    }

    fn read(&self, path: &Path) -> Directory {
        let mut all = self.lock();
        loop {
            match all.get(path).copied().unwrap_or_default() {
                Directory::Stuck => {
                    all = self.0.1.wait(all).unwrap_or_else(PoisonError::into_inner);
                }
                other => return other,
            }
        }
    }

    /// A registry of a tiny model whose adapters are on this disk.
    pub fn registry(&self, options: AdapterOptions) -> AdapterRegistry {
        let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures");
        let model = EngineModel::open(&fixtures.join("tiny-llama"), Default::default()).unwrap();
        let (rt, config) = (model.rt.clone(), model.decoder.config().clone());
        let disk = self.clone();
        let read = move |path: &Path| {
            let files = match disk.read(path) {
                Directory::Bad => "no such adapter",
                Directory::NoMemory => {
                    return Err(l1_tensor::Error::OutOfMemory { bytes: 4096 }.into());
                }
                _ => "adapters/tiny-llama-all",
            };
            LoraAdapter::open(&rt, &fixtures.join(files), &config, 64)
        };
        AdapterRegistry::reading(read, options)
    }
}
