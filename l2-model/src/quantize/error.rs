//! Errors of quantising a checkpoint.

use std::path::PathBuf;

use crate::checkpoint::nvfp4::GROUP;
use crate::config::ConfigError;
use crate::tokenizer::TokenizerError;

/// Error of quantising a checkpoint.
#[derive(Debug, thiserror::Error)]
pub enum QuantizeError {
    /// The input is a file of safetensors.
    #[error(
        "{} is neither a Hugging Face directory nor a GGUF file: pass the directory that it is in", path.display()
    )]
    NotADirectory {
        /// The input.
        path: PathBuf,
    },
    /// The config of a GGUF file has no counterpart in transformers.
    #[error(
        "{}: no config.json can be written for it: {reason}; quantise the Hugging Face directory that it was made from",
        path.display()
    )]
    ConfigNotWritten {
        /// The input.
        path: PathBuf,
        /// Reason.
        reason: ConfigError,
    },
    /// The tokenizer of a GGUF file cannot be written.
    #[error(
        "{}: no tokenizer.json can be written for it: {reason}; quantise the Hugging Face directory that it was made \
         from", path.display()
    )]
    TokenizerNotWritten {
        /// The input.
        path: PathBuf,
        /// Reason.
        reason: TokenizerError,
    },
    /// The input is quantised.
    #[error("{} is quantised already: quantise the bf16 checkpoint that it was made from", path.display())]
    AlreadyQuantized {
        /// The input.
        path: PathBuf,
    },
    /// No weight can be quantised.
    #[error("no weight of {} can be quantised: their rows must be a multiple of {GROUP} weights long", path.display())]
    NothingToQuantize {
        /// The input.
        path: PathBuf,
    },
    /// The output directory has files.
    #[error("{} is not empty: pass another directory, or --force to write over it", path.display())]
    OutputNotEmpty {
        /// The directory.
        path: PathBuf,
    },
    /// The output is a file.
    #[error("{} is a file: pass a directory for the output, which is created", path.display())]
    OutputIsFile {
        /// The file.
        path: PathBuf,
    },
    /// The output directory cannot be made.
    #[error("cannot make the directory {}: {reason}; pass another one", path.display())]
    OutputNotMade {
        /// The directory.
        path: PathBuf,
        /// Reason.
        reason: std::io::Error,
    },
    /// Input and output are the same directory.
    #[error("{} is the input: pass another directory for the output", path.display())]
    SameDirectory {
        /// The directory.
        path: PathBuf,
    },
    /// A file of the input is in the output directory, where it would be deleted.
    #[error(
        "{} of the input is in {}, or a link to a file there: pass another directory for the output", file.display(),
        path.display()
    )]
    InputInOutput {
        /// The file, as the input names it.
        file: PathBuf,
        /// The output directory.
        path: PathBuf,
    },
    /// A file cannot be read or written.
    #[error("{}: {reason}", path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// Reason.
        reason: std::io::Error,
    },
}
