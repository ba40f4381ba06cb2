//! The error of this crate: each module has its own error, [`Error`] contains them.

use std::io::ErrorKind;
use std::path::PathBuf;

use crate::batch::BatchError;
use crate::checkpoint::{CheckpointError, GgufError, Nvfp4Error, QuantError, TensorSetError};
use crate::config::ConfigError;
use crate::tokenizer::TokenizerError;

/// The result of everything fallible in `l2-model`.
pub type Result<T> = std::result::Result<T, Error>;

/// Errors of checkpoints, configs, tokenizers and the decoder.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An error of an op, a device or a buffer.
    #[error(transparent)]
    Tensor(#[from] l1_tensor::Error),
    /// A row of a matrix whose numbers cannot be used.
    #[error("{tensor}: row {row} {why}")]
    Row {
        /// The tensor, by its Hugging Face name.
        tensor: String,
        /// Index of the row in the checkpoint.
        row: usize,
        /// What is wrong with it, as a predicate.
        why: String,
    },
    /// A number of a checkpoint that is infinite or not a number.
    #[error(
        "tensor `{tensor}` has {value} at {at:?}: the checkpoint is damaged; fetch the model again, or convert it again"
    )]
    NotFinite {
        /// The tensor, by its name in the file.
        tensor: String,
        /// Its indices in the file: row and column of a matrix.
        at: Vec<usize>,
        /// The number, as the model has it: one that is too large for bf16 is infinite.
        value: f32,
    },
    /// An error of the model's config.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// An error of the checkpoint.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// An error of the tokenizer.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// An error of the chat template.
    #[error(transparent)]
    ChatTemplate(#[from] crate::chat_template::ChatTemplateError),
    /// A draft head that does not fit, or is not supported.
    #[error(transparent)]
    DraftHead(#[from] crate::draft_head::DraftHeadError),
    /// An adapter that does not fit, or is not supported.
    #[error(transparent)]
    Adapter(#[from] crate::adapter::AdapterError),
    /// A checkpoint that cannot be quantised.
    #[error(transparent)]
    Quantize(#[from] crate::quantize::QuantizeError),
    /// An invalid step.
    #[error(transparent)]
    Batch(#[from] BatchError),
    /// An invalid `generation_config.json`.
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
    /// The prompt has no tokens.
    #[error("the prompt is empty: give at least one token")]
    EmptyPrompt,
    /// The prompt leaves no room for output.
    #[error("the prompt has {tokens} tokens, but the context holds {context}: shorten it")]
    PromptTooLong {
        /// Number of tokens of the prompt.
        tokens: usize,
        /// Maximum number of tokens of a sequence.
        context: usize,
    },
}

impl Error {
    /// Whether the process had no memory for what was read: the same call may succeed later.
    pub fn is_out_of_memory(&self) -> bool {
        match self {
            Self::Tensor(l1_tensor::Error::OutOfMemory { .. }) => true,
            Self::Checkpoint(CheckpointError::Io { reason, .. }) => {
                reason.kind() == ErrorKind::OutOfMemory
            }
            _ => false,
        }
    }
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

impl From<Nvfp4Error> for Error {
    fn from(e: Nvfp4Error) -> Self {
        Self::Checkpoint(e.into())
    }
}

impl From<GgufError> for Error {
    fn from(reason: GgufError) -> Self {
        Self::Checkpoint(CheckpointError::Gguf { path: "GGUF file".into(), reason })
    }
}
