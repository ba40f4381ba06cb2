//! Errors of adapters.

use std::path::PathBuf;

/// An adapter that cannot be loaded, or that does not fit its model.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AdapterError {
    /// There is no such directory.
    #[error("{} does not exist: pass the directory of a LoRA adapter as PEFT writes it", path.display())]
    NoDirectory {
        /// The directory.
        path: PathBuf,
    },
    /// A file where the directory should be.
    #[error(
        "{} is a file: pass the directory with adapter_config.json and adapter_model.safetensors, as PEFT writes it",
        path.display()
    )]
    NotADirectory {
        /// The file.
        path: PathBuf,
    },
    /// The directory has no `adapter_config.json`.
    #[error("{} has no adapter_config.json: pass the directory of a LoRA adapter as PEFT writes it", path.display())]
    NoConfig {
        /// The directory.
        path: PathBuf,
    },
    /// The directory has no weights that can be read.
    #[error(
        "{} has no adapter_model.safetensors; adapter_model.bin is not read: load the adapter with PEFT and save it again",
        path.display()
    )]
    NoWeights {
        /// The directory.
        path: PathBuf,
    },
    /// A file that cannot be read or parsed.
    #[error("{}: {why}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// A kind of adapter, or a variant of LoRA, that is not supported.
    #[error("adapter_config.json: `{key}` is {value}: {why}")]
    Unsupported {
        /// Key of the config.
        key: String,
        /// Its value, shortened.
        value: String,
        /// What is supported.
        why: String,
    },
    /// A rank above the maximum.
    #[error(
        "`{module}` has rank {rank}, the maximum is {max}: raise --max-lora-rank to at least {rank}"
    )]
    RankTooLarge {
        /// The module.
        module: String,
        /// Its rank.
        rank: usize,
        /// Maximum rank.
        max: usize,
    },
    /// A workspace without room for an adapter of this rank.
    #[error(
        "the adapter has rank {rank}, the workspace has room for {max}: make it with a larger rank"
    )]
    NoRoom {
        /// Rank of the adapter.
        rank: usize,
        /// Maximum rank.
        max: usize,
    },
    /// A tensor whose shape is not that of the model and of the rank in the config.
    #[error(
        "tensor `{tensor}` is {got:?}, for this model and `r` = {rank} it must be {expected:?}: \
         pass an adapter that was trained for this model, with its own adapter_config.json"
    )]
    Shape {
        /// The tensor.
        tensor: String,
        /// Its shape.
        got: Vec<usize>,
        /// The right shape.
        expected: Vec<usize>,
        /// Rank of the module, according to the config.
        rank: usize,
    },
    /// A tensor for a part of the model that adapters cannot change here, or that the model does not have.
    #[error("tensor `{tensor}`: {why}")]
    Tensor {
        /// The tensor.
        tensor: String,
        /// What is wrong, and what is supported.
        why: String,
    },
    /// A matrix whose numbers are of a type that is not read.
    #[error(
        "tensor `{tensor}` is of type {dtype}, and the matrices of an adapter are F32, F16 or BF16: load the adapter with \
         PEFT, convert it with `.to(torch.bfloat16)`, and save it again"
    )]
    Type {
        /// The tensor.
        tensor: String,
        /// Its type.
        dtype: String,
    },
    /// One of the two matrices of a side term is missing, or all of a module.
    #[error("`{missing}` is missing: the file is incomplete, download or save the adapter again")]
    Missing {
        /// Tensor or module.
        missing: String,
    },
    /// A factor that f32 cannot hold.
    #[error("`{module}`: `lora_alpha` and `r` give the factor {scale}, it must be finite")]
    Scale {
        /// The module.
        module: String,
        /// The factor.
        scale: String,
    },
    /// An adapter of another model.
    #[error("the adapter was loaded for another model: load it for the model that uses it")]
    OtherModel,
    /// A number that is not finite, or that bf16 cannot hold.
    #[error(
        "tensor `{tensor}` has {value} in row {row}: the weights of an adapter must be finite in bf16, below 3.4e38"
    )]
    NotFinite {
        /// The tensor.
        tensor: String,
        /// The row.
        row: usize,
        /// The number.
        value: String,
    },
}

/// The beginning of a text from a file, for a message.
pub(super) fn shortened(text: &str) -> String {
    const MOST: usize = 80;
    match text.char_indices().nth(MOST) {
        None => text.into(),
        Some((end, _)) => format!("{}..", &text[..end]),
    }
}
