//! A typed launcher for each kernel. It checks shapes on the host and then enqueues the kernel. No launcher
//! waits for the device, except for those that copy blocks to the host and back.
//!
//! Values in device memory (indices, lengths, tables) cannot be checked here; the code that uploads them must
//! check them. A kernel ignores an index of -1 where the docs say so.
//!
//! The ops are bound by memory bandwidth, except for matmuls of many rows and attention of many queries,
//! which are bound by arithmetic ([`traffic`] counts bytes for any shape). For each element:
//!
//! | op | file in `cu/` | reads | writes |
//! |---|---|---|---|
//! | [`add_in_place`] | `elementwise` | 8 | 4 |
//! | [`scale_in_place`], [`add_bias`] | `elementwise` | 4 | 4 |
//! | [`convert`] | `elementwise` | 4 or 2 | 2 or 4 |
//! | [`embedding`] | `embedding`, `nvfp4` | 2 or 0.56 | 4 |
//! | [`gather_rows`] | `embedding` | 4 or 2 | as it reads |
//! | [`rms_norm`], [`layer_norm`] | `norm` | 4 | 4 or 2 |
//! | [`add_rms_norm`] | `norm` | 8 | 8 or 6 |
//! | [`rms_norm_heads`] | `norm` | 4 | 4 |
//! | [`rope`] | `rope` | 4 | 4 |
//! | [`gated`] | `gated` | 8 | 4 or 2 |
//! | [`kv_write`] | `kv_cache` | 4 | 4 or 2 |
//! | [`copy_blocks`] | `kv_cache` | 4 or 2 | as it reads |
//! | [`clear_slots`] | none: the driver's memset | 0 | 4 or 2 |
//! | [`read_blocks`], [`write_blocks`] | `exchange`, and the bus | 4 or 2 | as it reads |
//! | [`linear`], few rows | `gemv`, `gemv_nvfp4` | 2 or 0.56 for each weight | 4 or 2 |
//! | [`linear`], many rows | cuBLASLt, `gemm` | bound by multiplying | |
//! | [`attention`], up to 16 queries | `attention_decode` | 2 for each element of a key and a value | 4 or 2 |
//! | [`attention`], many queries | `attention_prefill`, `attention_rows` | bound by multiplying | |
//! | [`argmax`], [`sample`], [`top_k`] | `argmax`, `sample`, `top_k` | 4 for each logit | |

mod attention;
mod elementwise;
mod embedding;
mod exchange;
mod gated;
mod kv_cache;
mod linear;
mod norm;
mod product;
mod rope;
mod rows;
mod sampling;
pub mod traffic;

pub use attention::{AttentionParams, Sequences, attention};
pub use elementwise::{add_bias, add_in_place, convert, scale_in_place};
pub use embedding::{embedding, gather_rows};
pub use exchange::{read_blocks, write_blocks};
pub use gated::{Activation, gated};
pub use kv_cache::{clear_slots, copy_blocks, kv_write};
pub use linear::{Accumulate, linear, linear_gated};
pub use norm::{add_rms_norm, layer_norm, rms_norm, rms_norm_heads};
pub use rope::{rope, rope_angles};
pub use sampling::{MOST_TOP_K, NO_TOKEN, SampleRow, argmax, sample, top_k};

/// Order of sums.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Arithmetic {
    /// The fastest order for the shape: a row's last bits may depend on the batch around it.
    #[default]
    Fast,
    /// In one order for each element, whatever the batch.
    BatchInvariant,
}
