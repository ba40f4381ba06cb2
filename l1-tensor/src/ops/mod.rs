//! Ops: one file each.
//!
//! Every file has the same order: the definition of the op (formula, shapes, source), a short scalar
//! `*_reference` on plain slices, and the fast op, which takes views and writes into a buffer that the caller
//! owns. Tests compare the two on every instruction set of the processor.
//!
//! The fast ops share these rules:
//!
//! * **Rows.** An op works on the last dimension; the leading ones only give the number of rows and the start
//!   of each. The last dimension must be dense, the leading ones may have any strides: a slice of a packed
//!   `[T, q + k + v]` buffer is as good as a tensor of its own.
//! * **Checks first.** Shapes and dtypes are checked before anything is written. An error names the
//!   op and shows both layouts.
//! * **One runtime, one device.** After the checks an op asks its runtime where to run: on CUDA it is a
//!   launch ([`crate::cuda::ops`]) over tensors on the device; the rest of its file is the CPU's.
//! * **f32 inside.** Sums, norms and exponentials are f32 for every output type; a bf16 output is rounded
//!   once, at the end, to nearest even.
//! * **No allocation**, so that a steady decode step never waits for the allocator.
//! * **Batch invariance.** A row's value is one fixed order of operations over that row: threads
//!   split rows, never the sums inside one.

mod activation;
mod add;
mod argmax;
pub mod attention;
mod convert;
mod embedding;
mod layer_norm;
pub mod linear;
mod rms_norm;
mod rope;
mod rope_scaling;
mod rope_table;
mod rows;
mod scale;
mod softmax;
mod top_k;

pub use activation::{Gelu, gelu_mul, gelu_mul_reference, silu_mul, silu_mul_reference};
pub(crate) use activation::{gelu_erf, gelu_tanh, silu};
pub use add::{add, add_in_place, add_reference};
pub use argmax::{argmax, argmax_reference};
pub use attention::{
    AttentionParams, AttentionScratch, AttentionShape, DeviceSequences, KvCache, Sequences, TILE,
    attention,
};
pub use convert::convert;
pub use embedding::{embedding, gather_rows};
pub use layer_norm::{layer_norm, layer_norm_reference};
pub use linear::{Epilogue, linear, linear_low_rank};
pub use rms_norm::{rms_norm, rms_norm_in_place, rms_norm_reference};
pub use rope::{rope, rope_reference};
pub use rope_scaling::{InvalidRope, RopeScaling};
pub use rope_table::RopeTable;
pub(crate) use rows::check_rows;
pub use scale::{scale, scale_reference};
pub use softmax::{log_softmax, log_softmax_reference, softmax, softmax_reference};
pub use top_k::{TopKScratch, top_k, top_k_reference};
