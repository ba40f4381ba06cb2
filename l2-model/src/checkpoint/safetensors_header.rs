//! The safetensors file: a JSON header and the tensors' bytes.
//!
//! ```text
//! n: u64 little-endian | n bytes of JSON | data
//! {"__metadata__": {..}, "name": {"dtype": "BF16", "shape": [2, 3], "data_offsets": [0, 12]}, ..}
//! ```
//!
//! Offsets count from the end of the header; the tensors must tile the data without holes or
//! overlaps. Source: the README of the `safetensors` project.
//!
//! The `safetensors` crate supplies the dtypes. Its own reader checks the same rules, but it builds a tree of
//! the JSON before it checks it (a header full of `[0,0,0,...]` takes twenty-five times its size, measured
//! with version 0.8), and its errors do not name the tensor. This reader streams: it checks each entry as it
//! is read. A test checks that the crate accepts all that is accepted here.

use std::fmt;
use std::ops::Range;

use safetensors::Dtype;
use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};

use super::names::is_ignorable;
use super::quant::StoredType;

/// The only key of the header that is not a tensor.
const METADATA: &str = "__metadata__";
/// Bytes of the header's length.
const LENGTH: usize = 8;
/// Maximum length of a header, in bytes; the same bound as in the `safetensors` crate.
const MAX_HEADER: u64 = 100_000_000;
/// First bytes of what Git keeps in place of a large file.
const LFS_POINTER: &[u8] = b"version https://git-lfs";
/// Maximum number of dimensions of a tensor. Model weights have two, images four.
const MAX_DIMS: usize = 8;

/// Error of a safetensors file that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SafetensorsError {
    /// The file ends inside the header.
    #[error(
        "the file is cut short: it has {file} bytes, its header alone needs {need}; download it again"
    )]
    Truncated {
        /// The file's length.
        file: usize,
        /// Bytes of the header, its length field included.
        need: u64,
    },
    /// What Git has in place of a large file.
    #[error(
        "the file is a pointer of Git LFS: fetch the file itself with `git lfs pull`, or download it again"
    )]
    LfsPointer,
    /// A header longer than any real one.
    #[error(
        "the header length is {len} bytes, the maximum is {MAX_HEADER}: this is not a safetensors file"
    )]
    HeaderTooLong {
        /// The length in the file.
        len: u64,
    },
    /// The header is not the JSON it should be.
    #[error("bad header: {message}; download the file again")]
    Header {
        /// Message of the JSON parser, with line and column.
        message: String,
    },
    /// One name twice.
    #[error("tensor {name:?} occurs twice; export the model again")]
    DuplicateTensor {
        /// The tensor.
        name: String,
    },
    /// The data range of a tensor does not fit its shape.
    #[error(
        "tensor {name:?} of shape {shape:?} and type {dtype} cannot take bytes {begin}..{end}; the file is damaged, \
         download it again"
    )]
    Size {
        /// The tensor.
        name: String,
        /// Its shape.
        shape: Vec<usize>,
        /// Its type.
        dtype: String,
        /// Start of its data, from the end of the header.
        begin: usize,
        /// End of its data, from the end of the header.
        end: usize,
    },
    /// A hole or an overlap before this tensor.
    #[error(
        "tensor {name:?} starts at {begin}, the data before it ends at {previous}; the file is damaged, download it \
         again"
    )]
    Offsets {
        /// The tensor.
        name: String,
        /// Start of its data, from the end of the header.
        begin: usize,
        /// End of the previous tensor's data.
        previous: usize,
    },
    /// The file is shorter or longer than its header says.
    #[error("the file has {file} bytes, its header promises {expected}; download it again")]
    FileSize {
        /// The file's length.
        file: usize,
        /// The length implied by the header.
        expected: usize,
    },
    /// An unsupported tensor type.
    #[error(
        "tensor {name:?} is of type {dtype}; F32, F16, BF16, and U8 and F8_E4M3 as codes and scales of NVFP4 are read: \
         take an unquantised version of this model"
    )]
    UnsupportedType {
        /// The tensor.
        name: String,
        /// Its type.
        dtype: String,
    },
    /// A table of token ids of another type.
    #[error(
        "tensor {name:?} is of type {dtype}, and a table of token ids is I64, I32, U8 or BOOL: export the head again"
    )]
    NotIntegers {
        /// The tensor.
        name: String,
        /// Its type.
        dtype: String,
    },
}

/// One tensor of a safetensors file.
#[derive(Debug)]
pub(super) struct Info {
    pub(super) name: Box<str>,
    pub(super) shape: Box<[usize]>,
    pub(super) ty: StoredType,
    /// Position in the file.
    pub(super) data: Range<usize>,
}

/// Reads and checks a whole file; the result is sorted by name.
pub(super) fn read(file: &[u8]) -> Result<Vec<Info>, SafetensorsError> {
    if file.starts_with(LFS_POINTER) {
        return Err(SafetensorsError::LfsPointer);
    }
    let (json, data_start) = header(file)?;
    let bad_json =
        |error: serde_json::Error| SafetensorsError::Header { message: error.to_string() };
    let Entries(mut entries) = serde_json::from_str(json).map_err(bad_json)?;

    // exercise l2.safetensors
    entries.sort_unstable_by_key(|e| e.tensor.offsets);
    let mut previous = 0;
    for Entry { name, tensor } in &entries {
        let (begin, end) = tensor.offsets;
        if begin != previous {
            return Err(SafetensorsError::Offsets { name: name.to_string(), begin, previous });
        }
        // Asked apart: an end before the begin and a size that overflows would be equal, None to None.
        let size = tensor.bytes();
        if size.is_none() || end.checked_sub(begin) != size {
            return Err(SafetensorsError::Size {
                name: name.to_string(),
                shape: tensor.shape.0.to_vec(),
                dtype: tensor.dtype.to_string(),
                begin,
                end,
            });
        }
        previous = end;
    }
    let expected = previous.saturating_add(data_start);
    if expected != file.len() {
        return Err(SafetensorsError::FileSize { file: file.len(), expected });
    }

    entries.sort_unstable_by(|a, b| a.name.cmp(&b.name));
    if let Some(twice) = entries.windows(2).find(|w| w[0].name == w[1].name) {
        return Err(SafetensorsError::DuplicateTensor { name: twice[0].name.to_string() });
    }
    entries
        .into_iter()
        .filter(|e| stored_type(&e.name, e.tensor.dtype).is_some() || !is_ignorable(&e.name))
        .map(|Entry { name, tensor }| match stored_type(&name, tensor.dtype) {
            Some(ty) => Ok(Info {
                name,
                shape: numbers(ty, tensor.shape.0),
                ty,
                data: data_start + tensor.offsets.0..data_start + tensor.offsets.1,
            }),
            None => Err(SafetensorsError::UnsupportedType {
                name: name.into(),
                dtype: tensor.dtype.to_string(),
            }),
        })
        .collect()
    // end of exercise
}

/// Values of a tensor of whole numbers, in the order of the file: a table, not a weight. `None` if there is no tensor
/// of this name. The file has been [read](read), so its tensors are within its bounds.
pub(super) fn integers(file: &[u8], name: &str) -> Result<Option<Vec<i64>>, SafetensorsError> {
    let (json, data_start) = header(file)?;
    let bad_json =
        |error: serde_json::Error| SafetensorsError::Header { message: error.to_string() };
    let Entries(entries) = serde_json::from_str(json).map_err(bad_json)?;
    let Some(Entry { tensor, .. }) = entries.iter().find(|e| *e.name == *name) else {
        return Ok(None);
    };
    let data = file.get(data_start..).unwrap_or_default();
    let bytes = data.get(tensor.offsets.0..tensor.offsets.1).unwrap_or_default();
    let of = |width: usize, value: fn(&[u8]) -> i64| bytes.chunks_exact(width).map(value).collect();
    match tensor.dtype {
        Dtype::I64 => Ok(Some(of(8, |b| i64::from_le_bytes(b.try_into().unwrap_or_default())))),
        Dtype::I32 => {
            Ok(Some(of(4, |b| i32::from_le_bytes(b.try_into().unwrap_or_default()).into())))
        }
        Dtype::U8 | Dtype::BOOL => Ok(Some(of(1, |b| b[0].into()))),
        other => Err(SafetensorsError::NotIntegers { name: name.into(), dtype: other.to_string() }),
    }
}

/// JSON of the header, and start of the data.
fn header(file: &[u8]) -> Result<(&str, usize), SafetensorsError> {
    let truncated = |need| SafetensorsError::Truncated { file: file.len(), need };
    // exercise l2.safetensors
    let (length, rest) =
        file.split_first_chunk::<LENGTH>().ok_or_else(|| truncated(LENGTH as u64))?;
    let len = u64::from_le_bytes(*length);
    if len > MAX_HEADER {
        return Err(SafetensorsError::HeaderTooLong { len });
    }
    let json = rest.get(..len as usize).ok_or_else(|| truncated(len + LENGTH as u64))?;
    let json = std::str::from_utf8(json)
        .map_err(|error| SafetensorsError::Header { message: error.to_string() })?;
    Ok((json, LENGTH + json.len()))
    // end of exercise
}

/// Format of a tensor's numbers. Bytes are codes, and eight-bit floats scales, where NVFP4 has them
/// ([`super::nvfp4`]).
fn stored_type(name: &str, dtype: Dtype) -> Option<StoredType> {
    let codes = name.ends_with(".weight_packed") || name.ends_with(".weight");
    match dtype {
        Dtype::F32 => Some(StoredType::F32),
        Dtype::F16 => Some(StoredType::F16),
        Dtype::BF16 => Some(StoredType::BF16),
        Dtype::U8 if codes => Some(StoredType::E2M1),
        Dtype::F8_E4M3 if name.ends_with(".weight_scale") => Some(StoredType::F8_E4M3),
        _ => None,
    }
}

/// Shape in numbers, of which codes have two in a byte.
fn numbers(ty: StoredType, mut shape: Box<[usize]>) -> Box<[usize]> {
    if let Some(last) = shape.last_mut() {
        // The bytes are in the file, so only an empty tensor can have a dimension that overflows.
        *last = last.saturating_mul(ty.block_len());
    }
    shape
}

/// One tensor as the header writes it. Unknown fields are skipped, as the crate does.
#[derive(serde::Deserialize)]
struct Tensor {
    dtype: Dtype,
    shape: Shape,
    #[serde(rename = "data_offsets")]
    offsets: (usize, usize),
}

impl Tensor {
    fn bytes(&self) -> Option<usize> {
        // exercise l2.safetensors
        // As for GGUF: an empty shape with a huge dimension beside the zero is refused too.
        let product = |skip_zeros: bool| {
            let dims = self.shape.0.iter().filter(|d| !skip_zeros || **d != 0);
            dims.copied().try_fold(1usize, usize::checked_mul)
        };
        product(true)?.checked_mul(self.dtype.bitsize())?;
        let bits = product(false)?.checked_mul(self.dtype.bitsize())?;
        bits.is_multiple_of(8).then_some(bits / 8)
        // end of exercise
    }
}

struct Entry {
    name: Box<str>,
    tensor: Tensor,
}

/// The header's object, without `__metadata__`.
struct Entries(Vec<Entry>);

impl<'de> Deserialize<'de> for Entries {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(EntriesVisitor)
    }
}

struct EntriesVisitor;

impl<'de> Visitor<'de> for EntriesVisitor {
    type Value = Entries;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of tensors")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Entries, A::Error> {
        let mut entries = Vec::new();
        let mut metadata = false;
        while let Some(name) = map.next_key::<Box<str>>()? {
            if &*name == METADATA {
                if std::mem::replace(&mut metadata, true) {
                    return Err(A::Error::duplicate_field(METADATA));
                }
                map.next_value::<Option<Texts>>()?;
                continue;
            }
            entries.push(Entry { name, tensor: map.next_value()? });
        }
        Ok(Entries(entries))
    }
}

/// The free-form metadata: strings by name, checked and dropped. No entry is needed.
struct Texts;

impl<'de> Deserialize<'de> for Texts {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(TextsVisitor)
    }
}

struct TextsVisitor;

impl<'de> Visitor<'de> for TextsVisitor {
    type Value = Texts;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of strings")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Texts, A::Error> {
        while map.next_entry::<Box<str>, Box<str>>()?.is_some() {}
        Ok(Texts)
    }
}

/// A shape that stops reading at [`MAX_DIMS`].
struct Shape(Box<[usize]>);

impl<'de> Deserialize<'de> for Shape {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(ShapeVisitor)
    }
}

struct ShapeVisitor;

impl<'de> Visitor<'de> for ShapeVisitor {
    type Value = Shape;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a shape of at most {MAX_DIMS} dimensions")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Shape, A::Error> {
        let mut dims = [0; MAX_DIMS];
        let mut n = 0;
        while let Some(dim) = seq.next_element()? {
            if n == MAX_DIMS {
                return Err(A::Error::invalid_length(n + 1, &self));
            }
            dims[n] = dim;
            n += 1;
        }
        Ok(Shape(dims[..n].into()))
    }
}
