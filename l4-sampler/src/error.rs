//! Errors between logits and a token.

/// Result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An invalid call. Nothing was sampled.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Logits have the wrong shape or type.
    #[error(transparent)]
    Tensor(#[from] l1_tensor::Error),
    /// Error of the model during generation.
    #[error(transparent)]
    Model(#[from] l2_model::Error),
    /// A parameter of a request is invalid.
    #[error(transparent)]
    Params(#[from] ParamError),
    /// A guide cannot be made or followed.
    #[error(transparent)]
    Guide(#[from] crate::guide::GuideError),
    /// Lengths contradict each other.
    #[error("{what}: expected {expected}, got {got}")]
    Shape {
        /// What was counted.
        what: &'static str,
        /// Expected length.
        expected: usize,
        /// Actual length.
        got: usize,
    },
    /// The row of a single response could not be sampled. (In a batch this is the outcome of that row.)
    #[error(transparent)]
    Row(#[from] RowError),
}

/// Why no token can be sampled from a row. The other rows of the batch are not affected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RowError {
    /// Every token that is not banned has a logit of -inf or NaN.
    #[error(
        "no token can be sampled: each is banned, not allowed by the guide, or has a logit of -inf or NaN; loosen the \
         bans or the grammar"
    )]
    NothingLeft,
    /// All logits of the model's row are NaN.
    #[error("the model's logits are all NaN: its weights or this step's input are damaged")]
    AllNan,
}

/// An invalid parameter of a request, found before the request is admitted.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ParamError {
    /// A number is out of range.
    #[error("{name} must be {expected}, got {got}")]
    OutOfRange {
        /// Name of the parameter.
        name: &'static str,
        /// Valid values, in words.
        expected: &'static str,
        /// Value of the parameter.
        got: f64,
    },
    /// A token id is not in the vocabulary.
    #[error("{name} names token {id}, but the model has {vocab} tokens (0 to {})", vocab.saturating_sub(1))]
    TokenOutOfRange {
        /// Name of the parameter.
        name: &'static str,
        /// The token id.
        id: u32,
        /// Size of the vocabulary (logits in a row).
        vocab: usize,
    },
    /// No token is allowed.
    #[error("allowed_tokens is empty: name at least one token, or leave it out")]
    NothingAllowed,
    /// A stop string is empty: it would stop every output.
    #[error("a stop string is empty: leave it out")]
    EmptyStop,
    /// Stop strings need a tokenizer.
    #[error("stop strings need a tokenizer, and there is none: stop at token ids")]
    StopWithoutText,
}
