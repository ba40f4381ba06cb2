//! Options of the suffix drafter.

use crate::draft::DraftError;

/// Largest `max_tree_depth`.
pub const MAX_TREE_DEPTH: usize = 1024;

/// Largest `max_cached_tokens`: 7.5 GB.
pub const MAX_CACHED_TOKENS: usize = 1 << 28;

/// Options of a [`crate::draft::SuffixDrafter`], with vLLM's names where it has them (there they begin with
/// `suffix_decoding_`).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SuffixOptions {
    /// Longest match in tokens, 2 to [`MAX_TREE_DEPTH`]. The paper's trees are this deep. Default: 24.
    pub max_tree_depth: usize,
    /// Number of output tokens that are kept, those of all tenants together, at most [`MAX_CACHED_TOKENS`]; 0 looks
    /// into the request's own text only. (vLLM bounds the number of requests instead.) Default: 2^20.
    pub max_cached_tokens: usize,
    /// Maximum number of drafted tokens for each token of the match, not negative; one token is always allowed.
    /// Default: 1.
    pub max_spec_factor: f64,
    /// Smallest estimated probability of a drafted token, 0 to 1: its share of the occurrences, times the shares of the
    /// tokens before it. Default: 0.1.
    pub min_token_prob: f64,
}

impl Default for SuffixOptions {
    fn default() -> Self {
        Self {
            max_tree_depth: 24,
            max_cached_tokens: 1 << 20,
            max_spec_factor: 1.0,
            min_token_prob: 0.1,
        }
    }
}

impl SuffixOptions {
    /// Checks the range of every option.
    ///
    /// # Errors
    /// The first option that is out of its range.
    pub fn check(&self) -> Result<(), DraftError> {
        let out_of_range =
            |name, expected, got| Err(DraftError::OutOfRange { name, expected, got });
        let (depth, cached) = (self.max_tree_depth, self.max_cached_tokens);
        if !(2..=MAX_TREE_DEPTH).contains(&depth) {
            return out_of_range("max_tree_depth", "2 to 1024", depth as f64);
        }
        if cached > MAX_CACHED_TOKENS {
            return out_of_range("max_cached_tokens", "at most 268435456", cached as f64);
        }
        if !(0.0..f64::INFINITY).contains(&self.max_spec_factor) {
            return out_of_range("max_spec_factor", "at least 0", self.max_spec_factor);
        }
        if !(0.0..=1.0).contains(&self.min_token_prob) {
            return out_of_range("min_token_prob", "0 to 1", self.min_token_prob);
        }
        Ok(())
    }

    /// The nearest options in range; those that are not a number become 0.
    pub(super) fn nearest(self) -> Self {
        let number = |value: f64| if value.is_nan() { 0.0 } else { value };
        Self {
            max_tree_depth: self.max_tree_depth.clamp(2, MAX_TREE_DEPTH),
            max_cached_tokens: self.max_cached_tokens.min(MAX_CACHED_TOKENS),
            max_spec_factor: number(self.max_spec_factor).clamp(0.0, f64::MAX),
            min_token_prob: number(self.min_token_prob).clamp(0.0, 1.0),
        }
    }
}
