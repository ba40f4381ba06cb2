//! Errors of this layer. Every variant names the op and shows the layouts involved, so that the message alone is enough
//! to find the wrong line.

use std::path::PathBuf;

use crate::{DType, Layout};

/// The result of everything fallible in `l1-tensor`.
pub type Result<T> = std::result::Result<T, Error>;

/// Errors of tensors, ops, devices and safetensors files.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The shapes of two operands do not match.
    #[error("{op}: {why}: lhs is {lhs}, rhs is {rhs}")]
    ShapeMismatch {
        /// The op that refused.
        op: &'static str,
        /// Description of the violated rule.
        why: &'static str,
        /// Layout of the first operand (usually the input).
        lhs: Layout,
        /// Layout of the second operand (usually the weight or the output).
        rhs: Layout,
    },
    /// A tensor has the wrong element type.
    #[error("{op}: expected {expected}, got {got} in {layout}")]
    UnexpectedDType {
        /// The op that refused.
        op: &'static str,
        /// Element types that the op supports.
        expected: &'static str,
        /// Element type of the tensor.
        got: DType,
        /// Layout of that tensor.
        layout: Layout,
    },
    /// The op does not support a layout: most require a dense last dimension.
    #[error("{op}: {why}: {layout}")]
    UnsupportedLayout {
        /// The op that refused.
        op: &'static str,
        /// Layout that the op requires.
        why: &'static str,
        /// Layout of the tensor.
        layout: Layout,
    },
    /// An index (a token id, a row, a dimension) is out of range.
    #[error("{op}: {what} {index} is out of range, must be below {limit}")]
    OutOfRange {
        /// The op that refused.
        op: &'static str,
        /// Kind of index.
        what: &'static str,
        /// The index.
        index: i64,
        /// Upper bound, which is not allowed itself.
        limit: usize,
    },
    /// A shape has more dimensions than a [`Layout`] holds, or its size overflows.
    #[error("a tensor of shape {shape:?} is not possible: {why}")]
    BadShape {
        /// Requested shape.
        shape: Vec<usize>,
        /// What is wrong with it.
        why: &'static str,
    },
    /// A parameter of an op is invalid.
    #[error("{op}: {why}")]
    BadParameter {
        /// The op that refused.
        op: &'static str,
        /// What is wrong, and which values are valid.
        why: String,
    },
    /// A row of a weight cannot be used.
    #[error("{op}: row {row} {why}")]
    BadRow {
        /// The op that refused.
        op: &'static str,
        /// Index of the logical row.
        row: usize,
        /// What is wrong with it, as a predicate.
        why: String,
    },
    /// The requested device cannot be used on this machine.
    #[error("device {device}: {why}")]
    Device {
        /// The device, as the user writes it (`cpu`, `cuda:0`).
        device: String,
        /// Why not, and what to do.
        why: String,
    },
    /// An error of CUDA: too little memory, a kernel that does not compile, a failed launch.
    #[error("cuda: {0}")]
    Cuda(#[from] kernels::Error),
    /// Too little memory for a buffer.
    #[error(
        "could not allocate {bytes} bytes for a tensor: free some memory or use a smaller context or batch"
    )]
    OutOfMemory {
        /// Size of the buffer.
        bytes: usize,
    },
    /// A safetensors file is invalid.
    #[error("{path}: not a usable safetensors file: {why}")]
    Safetensors {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// A file cannot be read or written.
    #[error("{path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// Error of the system.
        source: std::io::Error,
    },
}
