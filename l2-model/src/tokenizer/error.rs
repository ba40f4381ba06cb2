//! What can go wrong between a file and a tokenizer, and between text and ids.

use std::path::PathBuf;

use crate::checkpoint::GgufError;

/// A tokenizer could not be loaded, or was asked for something it cannot do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TokenizerError {
    /// The checkpoint has no tokenizer.
    #[error(
        "no tokenizer: looked for {}; put the model's tokenizer.json beside its weights, or use a .gguf file, which carries its own",
        path.display()
    )]
    Missing {
        /// The file that is not there.
        path: PathBuf,
    },

    /// A file exists but cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the operating system said.
        source: std::io::Error,
    },

    /// A JSON file is not JSON, or not of the shape its name promises.
    #[error("{file}: {source}")]
    Json {
        /// The file, or `tokenizer.json` when it was given as bytes.
        file: String,
        /// Line, column and complaint.
        source: serde_json::Error,
    },

    /// A GGUF file's metadata does not hold a tokenizer.
    #[error("no tokenizer in the GGUF file: {0}")]
    Gguf(#[from] GgufError),

    /// The tokenizer uses a part this crate does not implement.
    #[error("tokenizer {part} of kind `{found}` is not supported; supported: {supported}")]
    Unsupported {
        /// Which part: `model`, `decoder`, `post_processor`, `tokenizer.ggml.pre`, ...
        part: &'static str,
        /// What the file says.
        found: String,
        /// What would have worked.
        supported: &'static str,
    },

    /// A part is there but contradicts itself or another part.
    #[error("bad tokenizer: {0}")]
    Invalid(String),

    /// An id that the vocabulary does not have.
    #[error("token id {id} is out of range: the vocabulary has {vocab_size} ids (0..={})", vocab_size.saturating_sub(1))]
    IdOutOfRange {
        /// The id asked for.
        id: u32,
        /// Number of ids; valid ones are below it.
        vocab_size: usize,
    },

    /// The `tokenizers` library refused a text.
    #[error("cannot tokenize the text: {0}")]
    Encode(String),
}

/// Shorthand for results of this module.
pub type Result<T, E = TokenizerError> = std::result::Result<T, E>;

/// Turns the boxed errors of the `tokenizers` library into ours.
pub(super) fn invalid(error: impl std::fmt::Display) -> TokenizerError {
    TokenizerError::Invalid(error.to_string())
}
