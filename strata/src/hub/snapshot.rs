//! The layout of the hub cache that Hugging Face tools share.
//!
//! ```text
//! models--org--name/
//!   blobs/<etag>                 the bytes, once
//!   snapshots/<commit>/<file>    a link to a blob, by the name of the file
//!   refs/<revision>              the commit of a branch or tag at the last fetch
//! .locks/models--org--name/<etag>.lock
//! ```
//!
//! Writing it as the others do means that a model fetched by transformers is found here, and the other way round.
//! The etag of a large file is its sha256, that of a small one its git hash. Layout: huggingface_hub's "Understand
//! caching" guide.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use hf_hub::{Cache, Repo, RepoType};
use serde_json::Value;

use super::spec::{HubId, Pick, safe_name, safe_path};
use super::{HubError, ModelSource, Options, choose};

/// One repository in the hub cache.
pub(super) struct Snapshots {
    root: PathBuf,
    folder: String,
    revision: String,
    cache: hf_hub::CacheRepo,
}

impl Snapshots {
    pub(super) fn of(id: &HubId, options: &Options) -> Result<Self, HubError> {
        let root = options.hf_cache()?.to_path_buf();
        let repo = Repo::with_revision(id.repo.clone(), RepoType::Model, id.revision().to_string());
        Ok(Snapshots {
            folder: repo.folder_name(),
            revision: id.revision().to_string(),
            cache: Cache::new(root.clone()).repo(repo),
            root,
        })
    }

    /// Directory of the snapshot of `commit`, which may not exist yet.
    pub(super) fn directory(&self, commit: &str) -> PathBuf {
        self.cache.pointer_path(commit)
    }

    /// Path of the blob of `etag`, which may not exist yet.
    pub(super) fn blob(&self, etag: &str) -> PathBuf {
        self.cache.blob_path(etag)
    }

    /// Lock file that huggingface_hub uses for the same blob.
    pub(super) fn lock(&self, name: &str) -> PathBuf {
        self.root.join(".locks").join(&self.folder).join(format!("{name}.lock"))
    }

    /// Latest downloaded snapshot of the requested revision.
    pub(super) fn current(&self) -> Option<PathBuf> {
        // A commit hash is its own reference.
        let own = self.directory(&self.revision);
        if safe_name(&self.revision) && own.is_dir() {
            return Some(own);
        }
        let reference = self.root.join(&self.folder).join("refs").join(&self.revision);
        let commit = fs::read_to_string(reference).ok()?;
        let dir = self.directory(commit.trim());
        (safe_name(commit.trim()) && dir.is_dir()).then_some(dir)
    }

    /// All snapshots, of any revision.
    pub(super) fn all(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.root.join(&self.folder).join("snapshots"));
        let mut dirs: Vec<_> =
            entries.into_iter().flatten().flatten().map(|entry| entry.path()).collect();
        dirs.sort();
        dirs
    }

    /// Records `commit` as that of the revision. Called last, so that a reference never names an incomplete snapshot.
    pub(super) fn point_at(&self, commit: &str) -> Result<(), HubError> {
        if commit == self.revision {
            return Ok(());
        }
        let path = self.root.join(&self.folder).join("refs").join(&self.revision);
        self.cache.create_ref(commit).map_err(|e| HubError::io("write", &path, e))
    }
}

/// Links the blob into a snapshot: by a relative link, or where links are not allowed by moving the file.
pub(super) fn link(blob: &Path, pointer: &Path) -> Result<(), HubError> {
    let failed = |e| HubError::io("create", pointer, e);
    let (Some(dir), Some(etag)) = (pointer.parent(), blob.file_name()) else {
        return Err(failed(io::ErrorKind::InvalidFilename.into()));
    };
    fs::create_dir_all(dir).map_err(failed)?;
    // From snapshots/<commit>/[sub/..]<file> up to the repository's directory.
    let Some(repo) = blob.parent().and_then(Path::parent) else {
        return Err(failed(io::ErrorKind::InvalidFilename.into()));
    };
    let depth = dir.strip_prefix(repo).map_or(0, |inside| inside.components().count());
    let target = (0..depth).map(|_| "..").collect::<PathBuf>().join("blobs").join(etag);
    // Remove a dangling link of a removed blob.
    if fs::symlink_metadata(pointer).is_ok() && !pointer.exists() {
        fs::remove_file(pointer).map_err(failed)?;
    }
    match symlink(&target, pointer) {
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(_) => fs::rename(blob, pointer).map_err(failed),
        Ok(()) => Ok(()),
    }
}

#[cfg(unix)]
fn symlink(target: &Path, at: &Path) -> io::Result<()> {
    std::os::unix::fs::symlink(target, at)
}

#[cfg(windows)]
fn symlink(target: &Path, at: &Path) -> io::Result<()> {
    std::os::windows::fs::symlink_file(target, at)
}

#[cfg(not(any(unix, windows)))]
fn symlink(_target: &Path, _at: &Path) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

/// The model that `pick` selects in a snapshot, if it is complete.
///
/// `Pick::Any` selects the only GGUF file of a snapshot without safetensors: once one quantisation was downloaded, the
/// name of the repository alone selects it.
pub(super) fn model_in(dir: &Path, pick: &Pick) -> Option<ModelSource> {
    if let Pick::File(file) = pick {
        let path = dir.join(file);
        return path.is_file().then_some(ModelSource::Gguf(path));
    }
    if *pick == Pick::Any && weights_are_complete(dir) {
        return Some(ModelSource::HfDir(dir.to_path_buf()));
    }
    let entries = fs::read_dir(dir).ok()?.flatten();
    let names: Vec<String> =
        entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    let file = choose::gguf(names.iter().map(String::as_str), pick).ok()?;
    let path = dir.join(file);
    path.is_file().then_some(ModelSource::Gguf(path))
}

/// Returns whether config.json, a tokenizer and every safetensors file of a model are in `dir`.
fn weights_are_complete(dir: &Path) -> bool {
    if !dir.join("config.json").is_file() || !dir.join("tokenizer.json").is_file() {
        return false;
    }
    if dir.join(choose::SINGLE).is_file() {
        return true;
    }
    let index = fs::read(dir.join(choose::INDEX)).ok();
    let shards = index.and_then(|bytes| shards_of(&bytes).ok());
    shards.is_some_and(|shards| shards.iter().all(|shard| dir.join(shard).is_file()))
}

/// The file names in a `model.safetensors.index.json`, sorted, each once.
pub(super) fn shards_of(index: &[u8]) -> Result<Vec<String>, String> {
    let index: Value = serde_json::from_slice(index).map_err(|e| e.to_string())?;
    let map = index.get("weight_map").and_then(Value::as_object).ok_or("it has no weight_map")?;
    let mut shards = Vec::new();
    for file in map.values() {
        match file.as_str() {
            Some(file) if safe_path(file) => shards.push(file.to_string()),
            _ => return Err(format!("{file} is not a file name")),
        }
    }
    shards.sort();
    shards.dedup();
    Ok(shards)
}
