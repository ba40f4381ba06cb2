//! What can go wrong between logits and a token.

/// The result of what is fallible on this floor.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A call that cannot be carried out: the caller's mistake, and nothing was sampled.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Logits of the wrong shape or type.
    #[error(transparent)]
    Tensor(#[from] l1_tensor::Error),
    /// The model, while an answer was generated.
    #[error(transparent)]
    Model(#[from] l2_model::Error),
    /// A request asks for something that has no meaning.
    #[error(transparent)]
    Params(#[from] ParamError),
    /// A guide that cannot be made or followed.
    #[error(transparent)]
    Guide(#[from] crate::guide::GuideError),
    /// Lengths that contradict each other.
    #[error("{what}: expected {expected}, got {got}")]
    Shape {
        /// What was counted.
        what: &'static str,
        /// How many there should be.
        expected: usize,
        /// How many there are.
        got: usize,
    },
    /// One row of a single answer could not be sampled (in a batch this is the row's own outcome).
    #[error(transparent)]
    Row(#[from] RowError),
}

/// A row from which no token can be taken. The batch's other rows are not affected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RowError {
    /// Everything that was not banned has a logit of -inf or NaN.
    #[error(
        "no token is left to choose: each is banned, refused by the guide, or has a logit of -inf or NaN; loosen the bans or the grammar"
    )]
    NothingLeft,
    /// The model's row holds nothing but NaN.
    #[error("the model's logits are all NaN: its weights or this step's input are damaged")]
    AllNan,
}

/// A parameter outside of what has a meaning. Found before a request is admitted.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ParamError {
    /// A number out of its range.
    #[error("{name} must be {expected}, got {got}")]
    OutOfRange {
        /// The parameter.
        name: &'static str,
        /// What it may be, in words.
        expected: &'static str,
        /// What it was.
        got: f64,
    },
    /// A token id that the vocabulary does not have.
    #[error("{name} names token {id}, but the model has {vocab} tokens (0 to {})", vocab.saturating_sub(1))]
    TokenOutOfRange {
        /// The parameter.
        name: &'static str,
        /// The id.
        id: u32,
        /// Logits in a row.
        vocab: usize,
    },
    /// No token could ever be chosen.
    #[error("allowed_tokens is empty: name at least one token, or leave it out")]
    NothingAllowed,
    /// A stop string without a character stops everything.
    #[error("a stop string is empty: leave it out")]
    EmptyStop,
    /// Stop strings where tokens cannot be turned into text.
    #[error("stop strings need a tokenizer, and there is none: stop at token ids")]
    StopWithoutText,
}
