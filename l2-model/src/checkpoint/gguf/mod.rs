//! GGUF, the single-file format of llama.cpp: metadata, tensor infos, data.
//!
//! ```text
//! "GGUF" | version: u32 | n_tensors: u64 | n_metadata: u64
//! n_metadata x  key: string | type: u32 | value
//! n_tensors  x  name: string | n_dims: u32 | dims: n_dims x u64 | type: u32 | offset: u64
//! padding to the alignment (general.alignment, else 32)
//! the tensors' data, each at its offset from here
//! ```
//!
//! A string is a u64 length and that many bytes; all numbers are little-endian. Versions 2 and 3
//! are read alike (3 only added big-endian files). Source: `docs/gguf.md` of the ggml repository.
//!
//! The reader trusts no length in the file. Every length is checked against the rest of the file
//! before it is used. Memory holds positions inside the file, never copies: a vocabulary of a
//! hundred thousand strings costs one entry until it is read. So the memory is a small multiple of
//! the file's header, and the time is linear in it but for two sorts.

mod cursor;
mod error;
mod metadata;
mod tensors;
mod value;

use std::ops::Range;
use std::path::Path;

pub use error::GgufError;
pub use metadata::Metadata;
pub use value::{Array, Value, ValueType};

use self::cursor::Cursor;
use self::metadata::Entry;
use self::tensors::Info;
use super::mapped::MappedFile;
use super::{CheckpointError, StoredTensor};

/// Default alignment of tensor data, when the file sets none.
const DEFAULT_ALIGNMENT: usize = 32;

#[derive(Debug)]
enum Data<'a> {
    Mapped(MappedFile),
    Borrowed(&'a [u8]),
}

/// An opened GGUF file, fully validated: every tensor's bytes are inside the file, of the length
/// its shape and type imply, and overlap no other's.
#[derive(Debug)]
pub struct GgufFile<'a> {
    data: Data<'a>,
    version: u32,
    /// Sorted by key.
    entries: Vec<Entry>,
    /// In file order.
    infos: Vec<Info>,
    /// Indices into `infos`, sorted by name.
    by_name: Vec<u32>,
}

impl GgufFile<'static> {
    /// Maps and validates the file at `path`.
    ///
    /// # Errors
    /// [`CheckpointError::Io`] when it cannot be opened, [`CheckpointError::Gguf`] when it is no
    /// well-formed GGUF file of a supported version.
    pub fn open(path: &Path) -> Result<Self, CheckpointError> {
        let mapped = MappedFile::open(path)?;
        let parsed = Parsed::read(mapped.bytes())
            .map_err(|reason| CheckpointError::Gguf { path: path.to_owned(), reason })?;
        Ok(parsed.over(Data::Mapped(mapped)))
    }
}

impl<'a> GgufFile<'a> {
    /// Validates a GGUF file that is already in memory.
    ///
    /// # Errors
    /// [`GgufError`], naming what is wrong and where.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, GgufError> {
        Ok(Parsed::read(bytes)?.over(Data::Borrowed(bytes)))
    }

    fn bytes(&self) -> &[u8] {
        match &self.data {
            Data::Mapped(file) => file.bytes(),
            Data::Borrowed(bytes) => bytes,
        }
    }

    /// The format's version, 2 or 3.
    pub fn version(&self) -> u32 {
        self.version
    }

    /// The metadata: architecture, hyperparameters, tokenizer.
    pub fn metadata(&self) -> Metadata<'_> {
        Metadata::new(self.bytes(), &self.entries)
    }

    /// `general.architecture`, for instance `"llama"`.
    ///
    /// # Errors
    /// [`GgufError::MissingKey`] or [`GgufError::WrongType`].
    pub fn architecture(&self) -> Result<&str, GgufError> {
        self.metadata().str("general.architecture")
    }

    /// All tensors, in the order of the file.
    pub fn tensors(&self) -> impl ExactSizeIterator<Item = StoredTensor<'_>> {
        let bytes = self.bytes();
        self.infos.iter().map(|info| info.view(bytes))
    }

    /// The tensor of this (GGUF) name.
    pub fn tensor(&self, name: &str) -> Option<StoredTensor<'_>> {
        Some(self.info(name)?.view(self.bytes()))
    }

    fn info(&self, name: &str) -> Option<&Info> {
        let bytes = self.bytes();
        let key = |i: &u32| self.infos[*i as usize].name.of(bytes);
        let at = self.by_name.binary_search_by(|i| key(i).cmp(name.as_bytes())).ok()?;
        self.infos.get(self.by_name[at] as usize)
    }

    /// Drops a tensor's mapped pages; see [`Checkpoint::release`](super::Checkpoint::release).
    pub fn release(&self, name: &str) {
        if let (Data::Mapped(file), Some(range)) = (&self.data, self.range(name)) {
            file.release(range);
        }
    }

    /// Starts reading a tensor; see [`Checkpoint::prefetch`](super::Checkpoint::prefetch).
    pub fn prefetch(&self, name: &str) {
        if let (Data::Mapped(file), Some(range)) = (&self.data, self.range(name)) {
            file.prefetch(range);
        }
    }

    fn range(&self, name: &str) -> Option<Range<usize>> {
        self.info(name).map(|info| info.data.range())
    }
}

/// Result of parsing, before it is joined with the owner of the bytes.
struct Parsed {
    version: u32,
    entries: Vec<Entry>,
    infos: Vec<Info>,
    by_name: Vec<u32>,
}

impl Parsed {
    fn over(self, data: Data<'_>) -> GgufFile<'_> {
        GgufFile {
            data,
            version: self.version,
            entries: self.entries,
            infos: self.infos,
            by_name: self.by_name,
        }
    }

    fn read(bytes: &[u8]) -> Result<Self, GgufError> {
        let mut cursor = Cursor::new(bytes);
        let magic = bytes.get(..4).unwrap_or(bytes);
        if magic != b"GGUF" {
            return Err(GgufError::NotGguf { hint: what_is_it(bytes) });
        }
        cursor.take(4, "magic")?;
        let version = cursor.u32("version")?;
        match version {
            2 | 3 => {}
            // The small version number of a big-endian file has its bytes reversed.
            v if v != 0 && v & 0xffff == 0 => return Err(GgufError::BigEndian),
            version => return Err(GgufError::Version { version }),
        }
        let n_tensors = cursor.u64("tensor count")?;
        let n_metadata = cursor.u64("metadata count")?;
        let entries = metadata::read(&mut cursor, n_metadata)?;
        let alignment = alignment(Metadata::new(bytes, &entries))?;
        let (infos, by_name) = tensors::read(&mut cursor, n_tensors, alignment)?;
        Ok(Parsed { version, entries, infos, by_name })
    }
}

/// `general.alignment`: a power of two, as ggml requires.
fn alignment(metadata: Metadata<'_>) -> Result<usize, GgufError> {
    const KEY: &str = "general.alignment";
    match metadata.optional(KEY, Metadata::u64)? {
        None => Ok(DEFAULT_ALIGNMENT),
        Some(value) => usize::try_from(value)
            .ok()
            .filter(|a| a.is_power_of_two())
            .ok_or(GgufError::Alignment { value }),
    }
}

/// Guesses which file was given instead of a GGUF file; the end of an error message.
fn what_is_it(bytes: &[u8]) -> &'static str {
    match bytes {
        [] => "the file is empty; download it again",
        b if b.starts_with(b"version https://git-lfs") => {
            "this is a Git LFS pointer, not the file it points to; run `git lfs pull`"
        }
        b if b.starts_with(b"<") => "this is a web page; download the file itself",
        // "ggml", "ggmf", "ggjt" and "ggla" as little-endian numbers.
        [b'l' | b'f', b'm', b'g', b'g', ..]
        | [b't', b'j', b'g', b'g', ..]
        | [b'a', b'l', b'g', b'g', ..] => {
            "this is a model file from before GGUF; convert it, or download a newer one"
        }
        _ => "check that the path names a .gguf file",
    }
}
