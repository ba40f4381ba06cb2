//! safetensors files in and out: goldens, dumps, and checkpoints of a single file.
//!
//! The format is a length, a JSON header that says name, dtype, shape and place of each tensor,
//! and the bytes: <https://huggingface.co/docs/safetensors>. The crate of that name checks that the
//! places follow each other without gaps or overlaps and fill the file exactly; this module adds
//! the mapping into memory, our [`DType`]s and errors that name the file.

use std::borrow::Cow;
use std::collections::{BTreeSet, HashMap};
use std::fs::File;
use std::path::{Path, PathBuf};

use ::safetensors::tensor::{Dtype, Metadata, SafeTensorError, SafeTensors, TensorInfo, View};
use memmap2::Mmap;

use crate::{DType, Device, Error, Result, Tensor, TensorRef};

/// An open safetensors file, mapped into memory: a tensor's bytes are read when they are touched.
///
/// As with every mapped file, truncating it while it is open ends the process
/// with a bus error. Replacing it (writing a new file and renaming, as [`save`] does) is safe.
pub struct SafetensorsFile {
    path: PathBuf,
    map: Mmap,
    header: Metadata,
    /// Where the tensors' bytes begin.
    data: usize,
}

/// Our name for a file's dtype, if layer 1 has that type.
fn dtype_of(dtype: Dtype) -> Option<DType> {
    Some(match dtype {
        Dtype::F32 => DType::F32,
        Dtype::BF16 => DType::BF16,
        Dtype::F16 => DType::F16,
        Dtype::F8_E4M3 => DType::F8E4M3,
        Dtype::U8 => DType::U8,
        Dtype::I8 => DType::I8,
        Dtype::I32 => DType::I32,
        Dtype::U32 => DType::U32,
        Dtype::I64 => DType::I64,
        _ => return None,
    })
}

fn file_dtype_of(dtype: DType) -> Dtype {
    match dtype {
        DType::F32 => Dtype::F32,
        DType::BF16 => Dtype::BF16,
        DType::F16 => Dtype::F16,
        DType::F8E4M3 => Dtype::F8_E4M3,
        DType::U8 => Dtype::U8,
        DType::I8 => Dtype::I8,
        DType::I32 => Dtype::I32,
        DType::U32 => Dtype::U32,
        DType::I64 => Dtype::I64,
    }
}

impl SafetensorsFile {
    /// Open a file and check its header. Costs time and memory in proportion to the header, not to
    /// the tensors.
    ///
    /// # Errors
    /// [`Error::Io`] when it cannot be read, [`Error::Safetensors`] when it is truncated or its
    /// header makes no sense.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref().to_path_buf();
        let io = |source| Error::Io { path: path.clone(), source };
        let file = File::open(&path).map_err(io)?;
        // SAFETY: the map is only read, as bytes, for which any content is valid. That nobody
        // truncates the file meanwhile is asked of the user, in the documentation above.
        let map = unsafe { Mmap::map(&file) }.map_err(io)?;
        let (header_len, header) =
            SafeTensors::read_metadata(&map).map_err(|e| broken(&path, e))?;
        Ok(Self { data: size_of::<u64>() + header_len, path, map, header })
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The names of all tensors, in the order of their bytes.
    pub fn names(&self) -> Vec<String> {
        self.header.offset_keys()
    }

    /// Whether there is a tensor of this name.
    pub fn contains(&self, name: &str) -> bool {
        self.header.info(name).is_some()
    }

    /// The file's `__metadata__`: free text, by key.
    pub fn metadata(&self) -> Option<&HashMap<String, String>> {
        self.header.metadata().as_ref()
    }

    /// Element type and shape of a tensor.
    ///
    /// # Errors
    /// [`Error::Safetensors`] when there is none of this name or its type is one that layer 1 does
    /// not have.
    pub fn info(&self, name: &str) -> Result<(DType, &[usize])> {
        let info = self.find(name)?;
        let dtype = dtype_of(info.dtype).ok_or_else(|| {
            self.error(format!("tensor `{name}` is {:?}, which is not supported", info.dtype))
        })?;
        Ok((dtype, &info.shape))
    }

    /// The bytes of a tensor, little endian, row-major. They may lie at any alignment.
    ///
    /// # Errors
    /// [`Error::Safetensors`] when there is none of this name.
    pub fn bytes(&self, name: &str) -> Result<&[u8]> {
        let (start, end) = self.find(name)?.data_offsets;
        self.map
            .get(self.data + start..self.data + end)
            .ok_or_else(|| self.error(format!("tensor `{name}` ends beyond the file")))
    }

    /// A copy of a tensor.
    ///
    /// # Errors
    /// As [`info`](Self::info), and [`Error::BadShape`] or [`Error::OutOfMemory`].
    pub fn tensor(&self, name: &str) -> Result<Tensor> {
        let (dtype, shape) = self.info(name)?;
        let bytes = self.bytes(name)?;
        let mut tensor = Tensor::zeros(shape, dtype, Device::Cpu)?;
        // The header's check makes the lengths equal; elements are little endian in the file and
        // on every processor this runs on.
        tensor.raw_mut()[..bytes.len()].copy_from_slice(bytes);
        Ok(tensor)
    }

    fn find(&self, name: &str) -> Result<&TensorInfo> {
        self.header
            .info(name)
            .ok_or_else(|| self.error(format!("there is no tensor `{name}` in it")))
    }

    fn error(&self, why: String) -> Error {
        Error::Safetensors { path: self.path.clone(), why }
    }
}

/// Write tensors under their names, with free text as `__metadata__`. The file appears under its
/// name when it is complete: an error on the way leaves what was there before.
///
/// # Errors
/// [`Error::UnsupportedLayout`] for a view with gaps (make a copy with
/// [`convert`](crate::ops::convert)), [`Error::Device`] for one that is not on the host,
/// [`Error::Io`] when it cannot be written,
/// [`Error::Safetensors`] when two tensors have one name.
pub fn save(
    path: impl AsRef<Path>,
    tensors: &[(&str, TensorRef<'_>)],
    metadata: &[(&str, &str)],
) -> Result<()> {
    let path = path.as_ref();
    let mut names = BTreeSet::new();
    let mut views = Vec::with_capacity(tensors.len());
    for (name, tensor) in tensors {
        if !names.insert(*name) || *name == "__metadata__" {
            let why = format!("`{name}` is not a free name: every tensor needs its own");
            return Err(Error::Safetensors { path: path.to_path_buf(), why });
        }
        tensor.on_host("safetensors::save")?;
        if !tensor.layout().is_contiguous() {
            let why = "needs a contiguous tensor";
            let layout = *tensor.layout();
            return Err(Error::UnsupportedLayout { op: "safetensors::save", why, layout });
        }
        views.push((*name, Saved(*tensor)));
    }
    let metadata = (!metadata.is_empty())
        .then(|| metadata.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect());
    ::safetensors::serialize_to_file(views, metadata, path).map_err(|e| broken(path, e))
}

fn broken(path: &Path, e: SafeTensorError) -> Error {
    let path = path.to_path_buf();
    match e {
        SafeTensorError::IoError(source) => Error::Io { path, source },
        e => Error::Safetensors { path, why: e.to_string() },
    }
}

/// A contiguous view as the crate wants to see it.
struct Saved<'a>(TensorRef<'a>);

impl View for Saved<'_> {
    fn dtype(&self) -> Dtype {
        file_dtype_of(self.0.dtype())
    }

    fn shape(&self) -> &[usize] {
        self.0.dims()
    }

    fn data(&self) -> Cow<'_, [u8]> {
        let start = self.0.layout().offset() * self.0.dtype().size();
        Cow::Borrowed(&self.0.raw()[start..][..self.data_len()])
    }

    fn data_len(&self) -> usize {
        self.0.layout().elem_count() * self.0.dtype().size()
    }
}
