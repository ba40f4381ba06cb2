//! What can go wrong on this floor. Every variant names the op and shows the layouts involved, so
//! that a message alone is enough to find the wrong line.

use std::path::PathBuf;

use crate::{DType, Layout};

/// The result of everything fallible in `l1-tensor`.
pub type Result<T> = std::result::Result<T, Error>;

/// Errors of tensors, ops, devices and safetensors files.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Two operands whose shapes do not fit each other.
    #[error("{op}: {why}: lhs is {lhs}, rhs is {rhs}")]
    ShapeMismatch {
        /// The op that refused.
        op: &'static str,
        /// The rule that was broken, in words.
        why: &'static str,
        /// Layout of the first operand (usually the input).
        lhs: Layout,
        /// Layout of the second operand (usually the weight or the output).
        rhs: Layout,
    },
    /// A tensor of the wrong element type.
    #[error("{op}: expected {expected}, got {got} in {layout}")]
    UnexpectedDType {
        /// The op that refused.
        op: &'static str,
        /// What the op can work on.
        expected: &'static str,
        /// What it was given.
        got: DType,
        /// The layout of the tensor it was given.
        layout: Layout,
    },
    /// A layout the op cannot walk: fast paths want the last dimension dense.
    #[error("{op}: {why}: {layout}")]
    UnsupportedLayout {
        /// The op that refused.
        op: &'static str,
        /// What it needs.
        why: &'static str,
        /// What it was given.
        layout: Layout,
    },
    /// An index (a token id, a row, a dimension) beyond its limit.
    #[error("{op}: {what} {index} is out of range, must be below {limit}")]
    OutOfRange {
        /// The op that refused.
        op: &'static str,
        /// What kind of index.
        what: &'static str,
        /// The index given.
        index: i64,
        /// One past the largest allowed.
        limit: usize,
    },
    /// A shape with more dimensions than a [`Layout`] holds, or one whose size overflows.
    #[error("a tensor of shape {shape:?} is not possible: {why}")]
    BadShape {
        /// The shape asked for.
        shape: Vec<usize>,
        /// Why it cannot be.
        why: &'static str,
    },
    /// A parameter of an op outside of what has a meaning.
    #[error("{op}: {why}")]
    BadParameter {
        /// The op that refused.
        op: &'static str,
        /// What is wrong and what would be right.
        why: String,
    },
    /// The device asked for cannot be used here.
    #[error("device {device}: {why}")]
    Device {
        /// The device, as the user writes it (`cpu`, `cuda:0`).
        device: String,
        /// Why not, and what to do.
        why: String,
    },
    /// CUDA refused: no memory, a kernel that does not compile, a failed launch.
    #[error("cuda: {0}")]
    Cuda(#[from] kernels::Error),
    /// Too little memory for a buffer.
    #[error(
        "could not allocate {bytes} bytes for a tensor: free some memory or use a smaller context or batch"
    )]
    OutOfMemory {
        /// The size of the buffer.
        bytes: usize,
    },
    /// A safetensors file that is not what it claims to be.
    #[error("{path}: not a usable safetensors file: {why}")]
    Safetensors {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// The operating system refused to read or write a file.
    #[error("{path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's own words.
        source: std::io::Error,
    },
}
