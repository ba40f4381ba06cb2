//! The error of this floor: each module has its own, this one holds them together.

use std::path::PathBuf;

use crate::batch::BatchError;
use crate::checkpoint::{CheckpointError, GgufError, QuantError, TensorSetError};
use crate::config::ConfigError;
use crate::tokenizer::TokenizerError;

/// The result of everything fallible in `l2-model`.
pub type Result<T> = std::result::Result<T, Error>;

/// Errors of checkpoints, configs, tokenizers and the decoder.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An op, a device or a buffer.
    #[error(transparent)]
    Tensor(#[from] l1_tensor::Error),
    /// The model's description.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The weights' files.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// The tokenizer.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// The chat template.
    #[error(transparent)]
    ChatTemplate(#[from] crate::chat_template::ChatTemplateError),
    /// A step that cannot be run.
    #[error(transparent)]
    Batch(#[from] BatchError),
    /// `generation_config.json` that is not what it should be.
    #[error("{path}: {why}")]
    GenerationConfig {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
    /// A golden dump that cannot be compared with this model.
    #[error("{path}: {why}")]
    Golden {
        /// The file.
        path: PathBuf,
        /// What is wrong, and what would be right.
        why: String,
    },
    /// A prompt without a single token.
    #[error("the prompt is empty: give at least one token")]
    EmptyPrompt,
    /// A prompt that leaves no room for an answer.
    #[error("the prompt has {tokens} tokens, but the context holds {context}: shorten it")]
    PromptTooLong {
        /// Tokens of the prompt.
        tokens: usize,
        /// The most a sequence may have.
        context: usize,
    },
}

impl From<l1_tensor::cuda::Error> for Error {
    fn from(e: l1_tensor::cuda::Error) -> Self {
        Self::Tensor(e.into())
    }
}

impl From<TensorSetError> for Error {
    fn from(e: TensorSetError) -> Self {
        Self::Checkpoint(e.into())
    }
}

impl From<QuantError> for Error {
    fn from(e: QuantError) -> Self {
        Self::Checkpoint(e.into())
    }
}

impl From<GgufError> for Error {
    fn from(reason: GgufError) -> Self {
        Self::Checkpoint(CheckpointError::Gguf { path: "GGUF file".into(), reason })
    }
}
