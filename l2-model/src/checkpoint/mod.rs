//! Checkpoints: the files that hold weights.
//!
//! Two containers are read, both by mapping the file and reading its bytes in place:
//!
//! * [`gguf`]: one file of llama.cpp, holding metadata, tokenizer and (mostly quantised) weights;
//! * [`safetensors_dir`]: a Hugging Face directory with plain weights or such in [`nvfp4`], in one file or in shards.
//!
//! [`Checkpoint`] is their common interface. It uses Hugging Face names for either
//! container ([`names`]), and hands out a [`StoredTensor`]: bytes in a [`StoredType`] that
//! [`quant`] expands row by row. A weight in several tensors is a [`Stored`]. A loader
//! walks over the tensors, expands each into the layout it wants, and [releases](Checkpoint::release) its pages, so that at no time both a whole file and
//! a whole model are in memory.
//!
//! Checkpoints are untrusted input. Everything is validated when a checkpoint is opened:
//! afterwards every tensor has the bytes that its shape and type say. Malformed input of any kind
//! gives a [`CheckpointError`] that says what to do; it does not panic, and does not
//! allocate more than a small multiple of the file's header.

pub mod gguf;
mod mapped;
pub mod names;
pub mod nvfp4;
pub mod quant;
pub mod safetensors_dir;
mod safetensors_header;

use std::path::{Path, PathBuf};

pub use gguf::{GgufError, GgufFile};
pub(crate) use mapped::open_regular;
pub use names::TensorSetError;
pub use nvfp4::{Nvfp4, Nvfp4Error, Stored};
pub use quant::{QuantError, StoredType};
pub use safetensors_dir::{IndexError, SafetensorsDir};
pub use safetensors_header::SafetensorsError;

/// Error of a checkpoint that cannot be opened, or lacks tensors of the model.
///
/// A message is complete, its reason included, in one line. So reasons are fields and not also
/// [sources](std::error::Error::source), which would be printed twice.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// The file cannot be read.
    #[error("cannot read {}: {reason}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Reason.
        reason: std::io::Error,
    },
    /// A directory, pipe or device where a file should be.
    #[error("{} is not a file; pass a .gguf file or a model directory", path.display())]
    NotAFile {
        /// The path.
        path: PathBuf,
    },
    /// A file that is larger than what it should hold can be.
    #[error("{} has {bytes} bytes, and at most {max} were expected: pass the right file", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// Its length.
        bytes: u64,
        /// Maximum length.
        max: u64,
    },
    /// A directory without safetensors.
    #[error(
        "no model.safetensors or model.safetensors.index.json in {}; PyTorch .bin weights are not read, and a .gguf \
         file is passed by its own path",
        dir.display()
    )]
    NoWeights {
        /// The directory.
        dir: PathBuf,
    },
    /// A bad GGUF file.
    #[error("{}: {reason}", path.display())]
    Gguf {
        /// The file.
        path: PathBuf,
        /// The error in it.
        reason: GgufError,
    },
    /// A bad safetensors file.
    #[error("{}: {reason}", path.display())]
    Safetensors {
        /// The file.
        path: PathBuf,
        /// The error in it.
        reason: SafetensorsError,
    },
    /// A bad index of shards.
    #[error("{}: {reason}", path.display())]
    Index {
        /// The index.
        path: PathBuf,
        /// The error in it.
        reason: IndexError,
    },
    /// Missing, unexpected or mis-shaped tensors.
    #[error(transparent)]
    Tensors(#[from] TensorSetError),
    /// The lengths of bytes and output do not match.
    #[error(transparent)]
    Quant(#[from] QuantError),
    /// A weight in NVFP4 whose tensors cannot be used.
    #[error(transparent)]
    Nvfp4(#[from] Nvfp4Error),
}

/// A tensor in a mapped file.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StoredTensor<'a> {
    /// The name in the file.
    pub name: &'a str,
    /// The format of its numbers.
    pub ty: StoredType,
    /// Row-major shape: the last dimension is contiguous. A linear layer is `[out, in]`.
    pub shape: &'a [usize],
    /// `ty.bytes_for(len())` bytes.
    pub bytes: &'a [u8],
}

impl<'a> StoredTensor<'a> {
    /// Number of weights; 1 for a scalar.
    pub fn len(&self) -> usize {
        self.shape.iter().product()
    }

    /// True when a dimension is 0.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Number of weights per row: the last dimension; 1 for a scalar.
    pub fn row_len(&self) -> usize {
        self.shape.last().copied().unwrap_or(1)
    }

    /// Number of rows: the product of all dimensions but the last.
    pub fn n_rows(&self) -> usize {
        match self.shape {
            [] => 1,
            [outer @ .., _] => outer.iter().product(),
        }
    }

    /// The bytes of one row (always whole blocks); `None` beyond the last.
    pub fn row(&self, row: usize) -> Option<&'a [u8]> {
        let len = self.ty.bytes_for(self.row_len())?;
        let start = row.checked_mul(len)?;
        (row < self.n_rows()).then(|| self.bytes.get(start..start.checked_add(len)?)).flatten()
    }

    /// Expands one row to f32; `out` has [`row_len`](Self::row_len) elements.
    ///
    /// # Errors
    /// [`QuantError`] when `out` has another length, or there is no such row.
    pub fn dequantize_row(&self, row: usize, out: &mut [f32]) -> Result<(), QuantError> {
        quant::dequantize(self.ty, self.row(row).unwrap_or_default(), out)
    }

    /// Expands one row to bf16; `out` has [`row_len`](Self::row_len) elements.
    ///
    /// # Errors
    /// As [`dequantize_row`](Self::dequantize_row).
    pub fn dequantize_row_bf16(
        &self,
        row: usize,
        out: &mut [half::bf16],
    ) -> Result<(), QuantError> {
        quant::dequantize_bf16(self.ty, self.row(row).unwrap_or_default(), out)
    }
}

/// An opened checkpoint in either container, with tensors under their Hugging Face names.
///
/// ```
/// # use std::path::Path;
/// use l2_model::checkpoint::Checkpoint;
///
/// # let path = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../fixtures/tiny-llama"));
/// let checkpoint = Checkpoint::open(path)?;
/// let norm = checkpoint.get("model.norm.weight").expect("every llama has a final norm");
/// assert_eq!(norm.shape, [96]);
/// let mut values = vec![0.0; norm.row_len()];
/// norm.dequantize_row(0, &mut values)?;
/// assert!(values.iter().all(|v| v.is_finite()));
/// # Ok::<(), l2_model::checkpoint::CheckpointError>(())
/// ```
#[derive(Debug)]
pub enum Checkpoint {
    /// One GGUF file.
    Gguf(GgufFile<'static>),
    /// One safetensors file, or a directory of them.
    Safetensors(SafetensorsDir),
}

impl Checkpoint {
    /// Opens a model directory, a `.safetensors` file or (any other file) a GGUF file.
    ///
    /// # Errors
    /// See [`GgufFile::open`] and [`SafetensorsDir::open`].
    pub fn open(path: &Path) -> Result<Self, CheckpointError> {
        if path.is_dir() {
            return Ok(Checkpoint::Safetensors(SafetensorsDir::open(path)?));
        }
        if path.extension().is_some_and(|e| e == "safetensors") {
            return Ok(Checkpoint::Safetensors(SafetensorsDir::open_file(path)?));
        }
        Ok(Checkpoint::Gguf(GgufFile::open(path)?))
    }

    /// The GGUF file, whose metadata hold config and tokenizer; `None` for safetensors.
    pub fn gguf(&self) -> Option<&GgufFile<'static>> {
        match self {
            Checkpoint::Gguf(file) => Some(file),
            Checkpoint::Safetensors(_) => None,
        }
    }

    /// All tensors under their Hugging Face names. A GGUF tensor that has none keeps its own.
    pub fn tensors(&self) -> Vec<(String, StoredTensor<'_>)> {
        match self {
            Checkpoint::Gguf(file) => file
                .tensors()
                .map(|t| (names::to_hf(t.name).unwrap_or_else(|| t.name.into()), t))
                .collect(),
            Checkpoint::Safetensors(dir) => dir.tensors().map(|t| (t.name.into(), t)).collect(),
        }
    }

    /// The names of [`tensors`](Self::tensors).
    pub fn tensor_names(&self) -> Vec<String> {
        self.tensors().into_iter().map(|(name, _)| name).collect()
    }

    /// The tensor of this Hugging Face name (in a GGUF file also of this GGUF name).
    ///
    /// Rows of some tensors are permuted: see [`rows_are_permuted`](Self::rows_are_permuted).
    pub fn get(&self, name: &str) -> Option<StoredTensor<'_>> {
        match self {
            Checkpoint::Gguf(file) => {
                let stored = names::to_gguf(name).and_then(|n| file.tensor(&n));
                stored.or_else(|| file.tensor(name))
            }
            Checkpoint::Safetensors(dir) => dir.tensor(name),
        }
    }

    /// Returns whether the rows of this tensor must be reordered by [`names::unpermute_rows`].
    ///
    /// True for the query and key projections of a llama GGUF file, weights and biases.
    pub fn rows_are_permuted(&self, name: &str) -> bool {
        self.gguf().is_some_and(|file| {
            let architecture = file.architecture().unwrap_or_default();
            names::rows_are_permuted(architecture, name)
        })
    }

    /// Checks that the checkpoint holds exactly the weights `expected`: (name, row-major shape). A weight in NVFP4 has
    /// the shape of its codes.
    ///
    /// # Errors
    /// [`TensorSetError`], listing all that is wrong; [`names::check_tensors`] lists what is tolerated.
    pub fn check(&self, expected: &[(String, Vec<usize>)]) -> Result<(), TensorSetError> {
        let tensors = self.tensors();
        let weights = tensors.iter().filter_map(|(n, t)| Some((self.weight_in(n, t)?, t.shape)));
        names::check_tensors(expected, weights)
    }

    /// Releases the mapped pages of a tensor that is no longer needed from the process's memory.
    ///
    /// The tensor can still be read; the pages then come back from the system's page cache. A hint: it does
    /// nothing for an unknown name or on a system without such hints.
    pub fn release(&self, name: &str) {
        self.hint(name, GgufFile::release, SafetensorsDir::release);
    }

    /// Starts reading a tensor from disk that will be needed soon.
    pub fn prefetch(&self, name: &str) {
        self.hint(name, GgufFile::prefetch, SafetensorsDir::prefetch);
    }

    fn hint(
        &self,
        name: &str,
        gguf: fn(&GgufFile<'static>, &str),
        safetensors: fn(&SafetensorsDir, &str),
    ) {
        match (self, self.get(name)) {
            (Checkpoint::Gguf(file), Some(tensor)) => gguf(file, tensor.name),
            (Checkpoint::Safetensors(dir), Some(tensor)) => safetensors(dir, tensor.name),
            (_, None) => {}
        }
    }
}
