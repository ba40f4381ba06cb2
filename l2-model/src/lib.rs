//! Layer 2 of Strata: a checkpoint becomes a model.
//!
//! * [`checkpoint`]: weights, from GGUF files and safetensors directories;
//! * [`tokenizer`] and [`mod@chat_template`]: text to token ids and back;
//! * [`ModelConfig`]: the description of a model;
//! * [`Decoder`]: the forward pass, one for every family, over a [`Batch`] of tokens;
//! * [`ModelDigest`]: an identity of config and weights, for keys and values that leave the process;
//! * [`SequenceState`]: the trait that stores keys and values;
//! * [`adapter`]: LoRA adapters, which change a decoder for some sequences of a step;
//! * [`draft_head`]: EAGLE, EAGLE-3 and Medusa heads, which propose tokens from a decoder's hidden rows;
//! * [`Model`]: all of these, opened from one path, and [`generate`] on top;
//! * [`compare`]: a comparison with a reference that finds the first wrong layer.

#![warn(missing_docs)]

pub mod adapter;
mod batch;
pub mod chat_template;
pub mod checkpoint;
pub mod compare;
mod config;
mod decoder;
mod digest;
pub mod draft_head;
mod error;
mod finite;
pub mod generate;
#[cfg(test)]
#[path = "../tests/judge/mod.rs"]
mod judge;
mod model;
pub mod quantize;
mod state;
pub mod tokenizer;

pub use batch::{Batch, BatchError};
pub use config::{
    Activation, AttentionConfig, Branch, BranchMode, ConfigError, LayerConfig, MlpConfig,
    ModelConfig, Norm, Op, RopeConfig, SUPPORTED,
};
pub use decoder::{Decoder, Matrix, Tap, Workspace, WorkspaceSpec};
pub use digest::ModelDigest;
pub use error::{Error, Result};
pub use generate::{FinishReason, GenerateOptions, Generation, Session};
pub use model::{Model, ModelFiles, chat_template, open_tokenizer};
pub use state::{ContiguousState, SequenceState, Snapshot};
