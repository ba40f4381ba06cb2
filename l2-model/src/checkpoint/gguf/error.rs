//! Errors of GGUF files.

use super::ValueType;
use crate::checkpoint::quant::StoredType;

/// Error of a GGUF file that cannot be used, or of a metadata value with another type.
///
/// Names from the file are printed quoted and escaped.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum GgufError {
    /// The first four bytes are not `GGUF`.
    #[error("not a GGUF file: {hint}")]
    NotGguf {
        /// Kind of file it may be, and what to do.
        hint: &'static str,
    },
    /// A file written for big-endian machines.
    #[error(
        "a big-endian GGUF file; only little-endian is read: take the usual file of this model, or convert it with \
         llama.cpp's gguf_convert_endian.py"
    )]
    BigEndian,
    /// A version other than 2 and 3.
    #[error(
        "GGUF version {version}; versions 2 and 3 are read: convert the model again with a current llama.cpp"
    )]
    Version {
        /// The version found.
        version: u32,
    },
    /// The file ends early.
    #[error(
        "the file is cut short: {what} at byte {at} needs {need} bytes, {left} are left; download it again"
    )]
    Truncated {
        /// The part that was being read.
        what: &'static str,
        /// Position in the file.
        at: usize,
        /// Bytes needed.
        need: u64,
        /// Bytes left.
        left: usize,
    },
    /// A count too large for the rest of the file.
    #[error(
        "{what} says {count}, but the rest of the file has room for {most} at most; the file is damaged, download it \
         again"
    )]
    Count {
        /// Name of the count.
        what: &'static str,
        /// Value of the count.
        count: u64,
        /// Maximum number for which the rest of the file has room.
        most: usize,
    },
    /// A key or tensor name longer than the format allows.
    #[error(
        "a {what} has {len} bytes, the maximum is {most}: the file is damaged, download it again"
    )]
    LongName {
        /// Key or tensor name.
        what: &'static str,
        /// Its length, in bytes.
        len: u64,
        /// Maximum length, in bytes.
        most: u64,
    },
    /// A key or tensor name that is not UTF-8.
    #[error("the {what} at byte {at} is not UTF-8; the file is damaged, download it again")]
    NameNotUtf8 {
        /// Key or tensor name.
        what: &'static str,
        /// Position in the file.
        at: usize,
    },
    /// One key twice.
    #[error("metadata key {key:?} occurs twice; convert the model again")]
    DuplicateKey {
        /// The key.
        key: String,
    },
    /// A metadata value of a type that the format does not have.
    #[error(
        "metadata key {key:?} has value type {id}, which no GGUF version has; the file is damaged, download it again"
    )]
    UnknownValueType {
        /// The key.
        key: String,
        /// The type's number.
        id: u32,
    },
    /// Arrays of arrays of arrays.
    #[error("metadata key {key:?} nests arrays deeper than {most}; no known writer does that")]
    NestedTooDeep {
        /// The key.
        key: String,
        /// Maximum depth of nesting.
        most: usize,
    },
    /// A boolean that is neither 0 nor 1.
    #[error("metadata key {key:?} holds a boolean that is neither 0 nor 1; the file is damaged")]
    BadBool {
        /// The key.
        key: String,
    },
    /// `general.alignment` is not a power of two.
    #[error("general.alignment is {value}, not a power of two; the file is damaged")]
    Alignment {
        /// Its value.
        value: u64,
    },
    /// One tensor name twice.
    #[error("tensor {name:?} occurs twice; convert the model again")]
    DuplicateTensor {
        /// The name.
        name: String,
    },
    /// More than four dimensions.
    #[error("tensor {name:?} has {n} dimensions; ggml has 4 at most: the file is damaged")]
    TooManyDims {
        /// The tensor.
        name: String,
        /// Its dimensions.
        n: u32,
    },
    /// A shape whose size does not fit the address space.
    #[error("tensor {name:?} has an impossible shape {dims:?}; the file is damaged")]
    Shape {
        /// The tensor.
        name: String,
        /// The dimensions as stored, innermost first.
        dims: Vec<u64>,
    },
    /// A tensor type that is not supported, or unknown.
    #[error(
        "tensor {name:?} is of type {type_name} (ggml type {id}), which is not read; supported are {}: take another \
         quantisation of this model",
        supported()
    )]
    UnsupportedType {
        /// The tensor.
        name: String,
        /// ggml's number for the type.
        id: u32,
        /// ggml's name for it, or `unknown`.
        type_name: &'static str,
    },
    /// A row that is not a whole number of quantisation blocks.
    #[error(
        "tensor {name:?} has rows of {row} weights, no multiple of the {} weights of a {ty} block; the file is damaged",
        ty.block_len()
    )]
    PartialBlock {
        /// The tensor.
        name: String,
        /// Weights per row.
        row: usize,
        /// Its type.
        ty: StoredType,
    },
    /// An offset that is not aligned.
    #[error(
        "tensor {name:?} starts at offset {offset}, no multiple of the alignment {alignment}; the file is damaged"
    )]
    Misaligned {
        /// The tensor.
        name: String,
        /// Its offset in the data section.
        offset: u64,
        /// The file's alignment.
        alignment: usize,
    },
    /// Data beyond the end of the file.
    #[error(
        "the file is cut short: tensor {name:?} needs {need} bytes at {start}, the file has {file}; download it again"
    )]
    PastEnd {
        /// The tensor.
        name: String,
        /// Start of its data, from the start of the file.
        start: u64,
        /// Number of bytes that it needs.
        need: usize,
        /// The file's length.
        file: usize,
    },
    /// Two tensors share bytes.
    #[error("tensors {first:?} and {second:?} overlap; the file is damaged, download it again")]
    Overlap {
        /// The one that starts first.
        first: String,
        /// The other.
        second: String,
    },
    /// A required key is missing.
    #[error("the GGUF metadata has no {key:?}; convert the model again with a current llama.cpp")]
    MissingKey {
        /// The key.
        key: String,
    },
    /// A value has another type than requested.
    #[error("GGUF metadata {key:?} is {found}, expected {expected}")]
    WrongType {
        /// The key.
        key: String,
        /// The requested type.
        expected: &'static str,
        /// The type found; for an array, the type of its elements.
        found: Found,
    },
    /// A number outside the requested range.
    #[error("GGUF metadata {key:?} is {value}, which does not fit {expected}")]
    OutOfRange {
        /// The key.
        key: String,
        /// The number.
        value: i128,
        /// The requested type.
        expected: &'static str,
    },
    /// Text that is not UTF-8.
    #[error("GGUF metadata {key:?}{} is not UTF-8", at_index(*index))]
    NotUtf8 {
        /// The key.
        key: String,
        /// Index of the element, in an array.
        index: Option<usize>,
    },
}

/// The type of a value found in the metadata.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// A single value.
    One(ValueType),
    /// An array with elements of this type.
    ArrayOf(ValueType),
}

impl std::fmt::Display for Found {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Found::One(ty) => write!(f, "{}", ty.name()),
            Found::ArrayOf(ty) => write!(f, "an array of {}", ty.name()),
        }
    }
}

fn supported() -> String {
    StoredType::ALL.map(StoredType::name).join(", ")
}

fn at_index(index: Option<usize>) -> String {
    index.map_or(String::new(), |i| format!(" element {i}"))
}
