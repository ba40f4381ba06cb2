//! Errors of guides.

/// Why a guide cannot be made or followed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GuideError {
    /// The grammar, schema or expression is invalid, or larger than allowed.
    #[error("this {kind} cannot be compiled: {why}")]
    Compile {
        /// Kind of guide: "JSON schema", "regular expression", "grammar", "list of choices".
        kind: &'static str,
        /// What is wrong.
        why: String,
    },
    /// No output can follow the guide.
    #[error("no output can follow this {kind}: {why}")]
    Impossible {
        /// Kind of guide.
        kind: &'static str,
        /// What contradicts what.
        why: String,
    },
    /// The guide does not allow this token here.
    #[error("the guide does not allow token {token} after {after} tokens")]
    Refused {
        /// The token.
        token: u32,
        /// Number of tokens followed so far.
        after: usize,
    },
    /// The grammar goes on here, but no token of the vocabulary does.
    #[error(
        "after {after} tokens the output must go on, and no token of the vocabulary can: the grammar asks for text \
         that this model cannot write"
    )]
    DeadEnd {
        /// Number of tokens followed so far.
        after: usize,
    },
    /// The grammar needs more work in one step than allowed.
    #[error("{}: {why}; simplify the grammar", Self::GAVE_UP)]
    TooComplex {
        /// Message of llguidance.
        why: String,
    },
    /// More tokens are to be taken back than were followed.
    #[error("a guide that followed {followed} tokens cannot take {back} back")]
    TooFarBack {
        /// Number of tokens followed.
        followed: usize,
        /// Number of tokens to take back.
        back: usize,
    },
    /// No guide can be made for this vocabulary.
    #[error("guides cannot use this vocabulary: {why}")]
    Vocabulary {
        /// What is wrong with it.
        why: String,
    },
}

impl GuideError {
    /// Beginning of the message of [`GuideError::TooComplex`], which tells it from failures that are not the request's.
    pub const GAVE_UP: &str = "the guide gave up";
}
