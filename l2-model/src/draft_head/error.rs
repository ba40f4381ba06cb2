//! Errors of draft heads.

use std::path::PathBuf;

use crate::Tap;

/// A draft head that does not fit its target, or that is not supported; or hidden rows of another shape than it reads.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DraftHeadError {
    /// The directory has the tensors of no known head.
    #[error(
        "{}: this is no draft head: it has neither `fc.weight` (EAGLE) nor `0.0.linear.weight` (Medusa); pass the \
         directory of a head, not that of a model",
        path.display()
    )]
    NotAHead {
        /// The directory.
        path: PathBuf,
    },
    /// The directory has no config.
    #[error("{} has no config.json: pass the directory of a draft head", path.display())]
    NoConfig {
        /// The directory.
        path: PathBuf,
    },
    /// The head was trained for another model.
    #[error(
        "the draft head's {what} is {head}, the model's is {target}: pass the head that was trained for this model"
    )]
    OtherTarget {
        /// Key of the config.
        what: &'static str,
        /// The head's value.
        head: usize,
        /// The model's value.
        target: usize,
    },
    /// A variant of a head that is not supported.
    #[error("config key `{key}` of the draft head: {why}")]
    Unsupported {
        /// Key of the variant.
        key: &'static str,
        /// What is not supported, and what is.
        why: String,
    },
    /// A bad table between the draft vocabulary and the target's.
    #[error("tensor `{name}` of the draft head: {why}; download or export the head again")]
    Table {
        /// The tensor.
        name: &'static str,
        /// What is wrong.
        why: String,
    },
    /// Bad or missing auxiliary layers of an EAGLE-3 head.
    #[error("config key `eagle_aux_hidden_state_layer_ids` of the draft head: {why}")]
    AuxLayers {
        /// What is wrong, and what would be right.
        why: String,
    },
    /// Hidden rows that are not what the head reads.
    #[error("hidden rows of the target: the draft head reads {expected}, but got {got}")]
    Hidden {
        /// Number and shape of the tensors that the head reads.
        expected: String,
        /// What it was given.
        got: String,
    },
    /// A hidden row of the previous step was asked for where there is none.
    #[error(
        "{tokens} tokens continue the previous draft step, which output {rows} hidden rows: each token needs the row \
         of its sequence"
    )]
    Previous {
        /// Number of tokens of this step.
        tokens: usize,
        /// Number of logit rows of the step before.
        rows: usize,
    },
    /// The target's step did not keep a tap that the head reads.
    #[error(
        "the target's step kept no rows at `{tap}`: put the head's taps into the batch of the target's step"
    )]
    NoTap {
        /// The tap.
        tap: Tap,
    },
}
