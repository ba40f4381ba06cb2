//! Layer 1 of Strata: tensors and the ops a transformer is made of.
//!
//! * [`Tensor`] owns memory, [`TensorRef`] and [`TensorMut`] borrow it under a [`Layout`].
//! * [`Weight`] is the matrix of a matmul. It is not a tensor: its bytes are arranged for the
//!   kernel that reads them.
//! * [`ops`] holds one file per op: a scalar reference to read, a fast path to run, and checks that
//!   name what does not fit. Every op writes into a buffer that its caller owns.
//! * [`Runtime`] is the device, the instruction set, the threads and the precision in use.
//!
//! One promise shapes all of it: *batch invariance*. The value of an output element is one fixed
//! order of operations over its own inputs. It does not depend on the number of other rows or of
//! threads, so a row alone and a row in a batch agree to the last bit.

#![warn(missing_docs)]

pub mod cpu;
mod device;
mod dtype;
pub mod e4m3;
mod error;
mod gpu;
mod host_buffer;
mod index;
mod layout;
pub mod ops;
mod profile;
mod runtime;
pub mod safetensors;
mod staging;
pub mod storage;
mod tensor;
mod weight;

pub use device::{Device, DeviceRequest};
pub use dtype::{DType, Element, bf16, f16};
pub use error::{Error, Result};
pub use host_buffer::{HostBuffer, HostBuffers};
pub use index::Index;
/// The CUDA layer: devices, graphs, launchers. Here so that the layers above need no other way to it.
pub use kernels as cuda;
pub use layout::{Layout, MAX_RANK};
pub use profile::{OpKind, OpTotals, Profile, WeightId, Work};
pub use runtime::{Precision, PrecisionRequest, Runtime, RuntimeOptions, WeightStorage};
pub use staging::Staging;
pub use tensor::{Rows, RowsMut, Tensor, TensorMut, TensorRef};
pub use weight::{
    BlockFormat, BlockPart, DeviceWeight, LowRank, PackedBf16, PackedBlocks, RowOrder,
    ScaledWeight, StoredRow, Weight,
};
