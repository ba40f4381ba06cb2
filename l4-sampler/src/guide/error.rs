//! What can go wrong with a guide.

/// A guide that cannot be made or followed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GuideError {
    /// The grammar, schema or expression is not one, or is larger than is allowed.
    #[error("this {kind} cannot be compiled: {why}")]
    Compile {
        /// Which kind: "JSON schema", "regular expression", "grammar", "list of choices".
        kind: &'static str,
        /// What is wrong.
        why: String,
    },
    /// No answer can follow it.
    #[error("no answer can follow this {kind}: {why}")]
    Impossible {
        /// Which kind.
        kind: &'static str,
        /// What contradicts what.
        why: String,
    },
    /// A token that the guide does not allow here.
    #[error("the guide does not allow token {token} after {after} tokens")]
    Refused {
        /// The token.
        token: u32,
        /// Tokens followed so far.
        after: usize,
    },
    /// The grammar goes on here, but no token of the vocabulary does.
    #[error(
        "after {after} tokens the answer must go on, and no token of the vocabulary can: the grammar asks for text that this model cannot write"
    )]
    DeadEnd {
        /// Tokens followed so far.
        after: usize,
    },
    /// The grammar needs more work at one step than is allowed.
    #[error("{}: {why}; simplify the grammar", Self::GAVE_UP)]
    TooComplex {
        /// What llguidance said.
        why: String,
    },
    /// More tokens taken back than were followed.
    #[error("a guide that followed {followed} tokens cannot take {back} back")]
    TooFarBack {
        /// Tokens followed.
        followed: usize,
        /// Tokens to take back.
        back: usize,
    },
    /// A vocabulary that no guide can be made for.
    #[error("guides cannot use this vocabulary: {why}")]
    Vocabulary {
        /// What is wrong with it.
        why: String,
    },
}

impl GuideError {
    /// How the message of [`GuideError::TooComplex`] begins: to be told from failures that are not the request's.
    pub const GAVE_UP: &str = "the guide gave up";
}
