//! A Hugging Face model directory: `model.safetensors`, or shards with an index.
//!
//! A large model is split into `model-00001-of-00004.safetensors` and so on. `model.safetensors.index.json`
//! has a `weight_map` from each tensor to its file.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::path::{Path, PathBuf};

use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, Visitor};

use super::mapped::MappedFile;
use super::safetensors_header::{self as header, Info};
use super::{CheckpointError, StoredTensor};

const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";
/// Maximum length of an index, in bytes. That of a 405-billion-parameter model has 0.1 MB.
const MAX_INDEX: u64 = 64 << 20;
/// Maximum number of shards that are read; the largest models have a few hundred.
const MAX_SHARDS: usize = 4096;

/// Error of an index of shards.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IndexError {
    /// The index is larger than any real one.
    #[error("it has {bytes} bytes, the maximum is {MAX_INDEX}: this is not an index of shards")]
    TooLong {
        /// Its length.
        bytes: u64,
    },
    /// The index is not the JSON it should be.
    #[error("{message}; download it again")]
    Json {
        /// Message of the JSON parser, with line and column.
        message: String,
    },
    /// No tensor at all.
    #[error("its weight_map is empty; download it again")]
    Empty,
    /// A file name that points outside of the directory.
    #[error(
        "it names the file {file:?}; shards must be plain file names in the same directory. Do not trust this model"
    )]
    FileName {
        /// The name.
        file: String,
    },
    /// A shard that does not exist.
    #[error("shard {file:?} is missing; download the model again")]
    ShardMissing {
        /// Its file name.
        file: String,
    },
    /// A tensor that is not in the shard that the index names.
    #[error("it places tensor {tensor:?} in {file:?}, where it is not; download both again")]
    TensorAbsent {
        /// The tensor.
        tensor: String,
        /// The shard named by the index.
        file: String,
    },
    /// A tensor in two shards.
    #[error("tensor {tensor:?} is in {first:?} and in {second:?}; download the model again")]
    DuplicateTensor {
        /// The tensor.
        tensor: String,
        /// One shard.
        first: String,
        /// The other.
        second: String,
    },
}

#[derive(Debug)]
struct Shard {
    file: MappedFile,
    /// Sorted by name.
    infos: Vec<Info>,
}

impl Shard {
    fn open(path: &Path) -> Result<Self, CheckpointError> {
        Self::of(MappedFile::open(path)?)
    }

    fn of(file: MappedFile) -> Result<Self, CheckpointError> {
        let bad = |reason| CheckpointError::Safetensors { path: file.path().to_owned(), reason };
        let infos = header::read(file.bytes()).map_err(bad)?;
        Ok(Shard { file, infos })
    }

    fn find(&self, name: &str) -> Option<&Info> {
        let at = self.infos.binary_search_by(|i| (*i.name).cmp(name)).ok()?;
        self.infos.get(at)
    }

    fn view<'a>(&'a self, info: &'a Info) -> StoredTensor<'a> {
        StoredTensor {
            name: &info.name,
            ty: info.ty,
            shape: &info.shape,
            bytes: self.file.bytes().get(info.data.clone()).unwrap_or_default(),
        }
    }

    fn file_name(&self) -> String {
        let name = self.file.path().file_name().unwrap_or_default();
        name.to_string_lossy().into_owned()
    }
}

/// The memory-mapped weights of a Hugging Face directory, fully validated.
#[derive(Debug)]
pub struct SafetensorsDir {
    shards: Vec<Shard>,
}

impl SafetensorsDir {
    /// Opens `model.safetensors` in `dir` or, where there is none, the shards that
    /// `model.safetensors.index.json` names.
    ///
    /// # Errors
    /// [`CheckpointError::NoWeights`] when `dir` has neither; [`CheckpointError::Index`],
    /// [`CheckpointError::Safetensors`] or [`CheckpointError::Io`] for what is wrong with a file.
    pub fn open(dir: &Path) -> Result<Self, CheckpointError> {
        let single = dir.join(SINGLE);
        if single.exists() {
            return Self::open_file(&single);
        }
        let index = dir.join(INDEX);
        if !index.exists() {
            return Err(CheckpointError::NoWeights { dir: dir.to_owned() });
        }
        Self::open_sharded(dir, &index)
    }

    /// Opens one safetensors file as a whole checkpoint.
    ///
    /// # Errors
    /// [`CheckpointError::Safetensors`] or [`CheckpointError::Io`].
    pub fn open_file(path: &Path) -> Result<Self, CheckpointError> {
        Ok(SafetensorsDir { shards: vec![Shard::open(path)?] })
    }

    /// Reads one safetensors file of at most `max` bytes into memory. What happens to the file afterwards changes nothing.
    ///
    /// # Errors
    /// As [`Self::open_file`]; [`CheckpointError::TooLarge`].
    pub(crate) fn read_file(path: &Path, max: u64) -> Result<Self, CheckpointError> {
        Ok(SafetensorsDir { shards: vec![Shard::of(MappedFile::read(path, max)?)?] })
    }

    fn open_sharded(dir: &Path, index: &Path) -> Result<Self, CheckpointError> {
        let bad = |reason| CheckpointError::Index { path: index.to_owned(), reason };
        let places = parse_index(MappedFile::open(index)?.bytes()).map_err(bad)?;
        let mut shards = Vec::new();
        for (file, tensors) in &places {
            let path = dir.join(plain_file_name(file).map_err(bad)?);
            if !path.exists() {
                let file = file.to_string();
                return Err(bad(IndexError::ShardMissing { file }));
            }
            let shard = Shard::open(&path)?;
            if let Some(tensor) = tensors.iter().find(|t| shard.find(t).is_none()) {
                return Err(bad(IndexError::TensorAbsent {
                    tensor: tensor.to_string(),
                    file: file.to_string(),
                }));
            }
            shards.push(shard);
        }
        no_duplicates(&shards).map_err(bad)?;
        Ok(SafetensorsDir { shards })
    }

    /// The files that were mapped.
    pub fn files(&self) -> impl Iterator<Item = &Path> {
        self.shards.iter().map(|s| s.file.path())
    }

    /// All tensors: shard by shard, by name within a shard.
    pub fn tensors(&self) -> impl Iterator<Item = StoredTensor<'_>> {
        self.shards.iter().flat_map(|s| s.infos.iter().map(|info| s.view(info)))
    }

    /// The tensor of this name.
    pub fn tensor(&self, name: &str) -> Option<StoredTensor<'_>> {
        let found = |s: &'_ Shard| s.find(name).is_some();
        let shard = self.shards.iter().find(|s| found(s))?;
        Some(shard.view(shard.find(name)?))
    }

    /// Values of a tensor of whole numbers, such as a draft head's `d2t`; `None` if there is none of this name.
    ///
    /// # Errors
    /// [`CheckpointError::Safetensors`] for a tensor of another type.
    pub fn integers(&self, name: &str) -> Result<Option<Vec<i64>>, CheckpointError> {
        for shard in &self.shards {
            let found = header::integers(shard.file.bytes(), name).map_err(|reason| {
                CheckpointError::Safetensors { path: shard.file.path().to_owned(), reason }
            })?;
            if found.is_some() {
                return Ok(found);
            }
        }
        Ok(None)
    }

    /// Drops a tensor's mapped pages; see [`Checkpoint::release`](super::Checkpoint::release).
    pub fn release(&self, name: &str) {
        self.with_place(name, MappedFile::release);
    }

    /// Starts reading a tensor; see [`Checkpoint::prefetch`](super::Checkpoint::prefetch).
    pub fn prefetch(&self, name: &str) {
        self.with_place(name, MappedFile::prefetch);
    }

    fn with_place(&self, name: &str, hint: fn(&MappedFile, Range<usize>)) {
        for shard in &self.shards {
            if let Some(info) = shard.find(name) {
                hint(&shard.file, info.data.clone());
            }
        }
    }
}

fn no_duplicates(shards: &[Shard]) -> Result<(), IndexError> {
    let mut seen: HashMap<&str, usize> = HashMap::new();
    for (at, shard) in shards.iter().enumerate() {
        for info in &shard.infos {
            if let Some(first) = seen.insert(&info.name, at) {
                return Err(IndexError::DuplicateTensor {
                    tensor: info.name.to_string(),
                    first: shards[first].file_name(),
                    second: shard.file_name(),
                });
            }
        }
    }
    Ok(())
}

/// The index names files. Only a plain name in the same directory is opened, so that a downloaded index
/// cannot name `../../something`.
fn plain_file_name(file: &str) -> Result<PathBuf, IndexError> {
    let plain =
        !file.is_empty() && file != "." && file != ".." && !file.contains(['/', '\\', ':', '\0']);
    if plain { Ok(PathBuf::from(file)) } else { Err(IndexError::FileName { file: file.into() }) }
}

/// File of each tensor, according to the index.
fn parse_index(text: &[u8]) -> Result<BTreeMap<Box<str>, Vec<Box<str>>>, IndexError> {
    #[derive(serde::Deserialize)]
    struct Index {
        weight_map: Places,
    }
    let bytes = text.len() as u64;
    if bytes > MAX_INDEX {
        return Err(IndexError::TooLong { bytes });
    }
    let index: Index = serde_json::from_slice(text)
        .map_err(|error| IndexError::Json { message: error.to_string() })?;
    if index.weight_map.0.is_empty() {
        return Err(IndexError::Empty);
    }
    Ok(index.weight_map.0)
}

/// Inverts `{"tensor": "file", ..}` while it is read, so that each file name is stored once.
struct Places(BTreeMap<Box<str>, Vec<Box<str>>>);

impl<'de> Deserialize<'de> for Places {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct PlacesVisitor;
        impl<'de> Visitor<'de> for PlacesVisitor {
            type Value = Places;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write!(f, "an object from tensor names to the names of at most {MAX_SHARDS} files")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Places, A::Error> {
                let mut places = BTreeMap::<Box<str>, Vec<Box<str>>>::new();
                while let Some((tensor, file)) = map.next_entry::<Box<str>, Box<str>>()? {
                    places.entry(file).or_default().push(tensor);
                    if places.len() > MAX_SHARDS {
                        return Err(A::Error::invalid_length(places.len(), &self));
                    }
                }
                Ok(Places(places))
            }
        }
        deserializer.deserialize_map(PlacesVisitor)
    }
}
