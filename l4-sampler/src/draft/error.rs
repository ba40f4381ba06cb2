//! Errors of drafters.

use super::ngram::MAX_NGRAM;

/// Invalid options of a drafter.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum DraftError {
    /// Lengths of n-grams that no drafter can look up.
    #[error(
        "prompt_lookup_min must be at least 1 and at most prompt_lookup_max, which must be at most {MAX_NGRAM}; got \
         prompt_lookup_min {min} and prompt_lookup_max {max}"
    )]
    NgramLengths {
        /// Shortest n-gram.
        min: usize,
        /// Longest n-gram.
        max: usize,
    },
    /// An option is out of range.
    #[error("{name} must be {expected}, got {got}")]
    OutOfRange {
        /// Name of the option.
        name: &'static str,
        /// Valid values, in words.
        expected: &'static str,
        /// Value of the option.
        got: f64,
    },
}
