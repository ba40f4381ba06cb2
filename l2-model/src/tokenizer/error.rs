//! Errors of loading a tokenizer, and of converting between text and ids.

use std::path::PathBuf;

use crate::checkpoint::GgufError;

/// Error of a tokenizer that cannot be loaded, or of a conversion.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TokenizerError {
    /// The checkpoint has no tokenizer.
    #[error(
        "no tokenizer: looked for {}; put the model's tokenizer.json beside its weights, or use a .gguf file, which \
         contains its own",
        path.display()
    )]
    Missing {
        /// Path of the missing file.
        path: PathBuf,
    },

    /// A file exists but cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Error of the operating system.
        source: std::io::Error,
    },

    /// A file is not JSON, or has not the expected structure.
    #[error("{file}: {source}")]
    Json {
        /// The file, or `tokenizer.json` when it was given as bytes.
        file: String,
        /// Line, column and reason.
        source: serde_json::Error,
    },

    /// A GGUF file's metadata does not hold a tokenizer.
    #[error("no tokenizer in the GGUF file: {0}")]
    Gguf(#[from] GgufError),

    /// The tokenizer uses a part this crate does not implement.
    #[error("tokenizer {part} of kind `{found}` is not supported; supported: {supported}")]
    Unsupported {
        /// Kind of part: `model`, `decoder`, `post_processor`, `tokenizer.ggml.pre`, ...
        part: &'static str,
        /// Value in the file.
        found: String,
        /// Supported values.
        supported: &'static str,
    },

    /// A part contradicts itself or another part.
    #[error("bad tokenizer: {0}")]
    Invalid(String),

    /// An id outside the vocabulary.
    #[error(
        "token id {id} is out of range: the vocabulary has {vocab_size} ids (0..={})",
        vocab_size.saturating_sub(1)
    )]
    IdOutOfRange {
        /// The requested id.
        id: u32,
        /// Number of ids; valid ones are below it.
        vocab_size: usize,
    },

    /// The `tokenizers` library rejected a text.
    #[error("cannot tokenize the text: {0}")]
    Encode(String),
}

/// Shorthand for results of this module.
pub type Result<T, E = TokenizerError> = std::result::Result<T, E>;

/// Converts the boxed errors of the `tokenizers` library.
pub(super) fn invalid(error: impl std::fmt::Display) -> TokenizerError {
    TokenizerError::Invalid(error.to_string())
}
