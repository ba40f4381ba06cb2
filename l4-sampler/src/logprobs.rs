//! What the model thought of a token: its log probability, and those of the likeliest.

/// Of which distribution.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogprobsOf {
    /// The model's own, before anything of this floor.
    #[default]
    Raw,
    /// The one that was drawn from, after temperature and filters. Tokens that were filtered out are not reported.
    Processed,
}

/// How much to tell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogprobsRequest {
    /// How many of the likeliest tokens, besides the chosen one.
    pub top: usize,
    /// Of which distribution.
    pub of: LogprobsOf,
}

/// Natural logarithms of probabilities.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TokenLogprobs {
    /// The chosen token.
    pub id: u32,
    /// Its log probability.
    pub logprob: f32,
    /// How many tokens are likelier (0 for the likeliest).
    pub rank: u32,
    /// The likeliest tokens, likeliest first, equal ones by id.
    pub top: Vec<(u32, f32)>,
}

/// Log probabilities of a prompt's own tokens: entry `i` is about `tokens[i]`, from row `i - 1` of `logits` `[T, V]`. The
/// first token has none.
///
/// # Errors
/// Shapes that do not fit, a token out of range.
pub fn prompt_logprobs(
    logits: l1_tensor::TensorRef<'_>,
    tokens: &[u32],
    top: usize,
) -> crate::Result<Vec<Option<TokenLogprobs>>> {
    let _ = (logits, tokens, top);
    todo!()
}
