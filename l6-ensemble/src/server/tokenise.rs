//! Text to tokens.
//!
//! A short text is tokenized where it arrives: that takes less time than to hand it to another thread. A long one takes
//! milliseconds to seconds, in the [`background`]. A text that is too long for the model whatever its tokens are is
//! refused before it is tokenized.

use std::sync::{Arc, OnceLock};

use l2_model::tokenizer::Tokenizer;

use super::app::App;
use super::background::{self, SHORT};
use super::error::ApiError;

/// Bytes of text that `/tokenize` takes of any model, and for each token of the model's context where that is more.
const MIN_TOKENIZED_BYTES: usize = 256 << 10;
const TOKENIZED_BYTES_PER_TOKEN: usize = 8;

/// The bytes of the longest token. Found when the first long text comes.
#[derive(Debug, Default)]
pub struct LongestToken(OnceLock<usize>);

/// The tokens of a text. `path` is the field that it came in.
///
/// # Errors
/// [`ApiError`]: what the tokenizer reports.
pub async fn encode(
    app: &Arc<App>,
    text: String,
    special: bool,
    path: &str,
) -> Result<Vec<u32>, ApiError> {
    let tokens = if text.len() <= SHORT {
        app.model.tokenizer.encode(&text, special)
    } else {
        let bytes = text.len();
        background::run(app, bytes, move |app| app.model.tokenizer.encode(&text, special)).await?
    };
    tokens.map_err(|why| ApiError::param(path, format!("{path}: {why}")))
}

/// Bytes of text, or tokens, that `/tokenize` and `/detokenize` take: more than fits the model, for clients that count
/// before they cut, and not so much that others wait for it.
pub fn most_tokenized(app: &App) -> usize {
    MIN_TOKENIZED_BYTES.max(app.model.max_model_len.saturating_mul(TOKENIZED_BYTES_PER_TOKEN))
}

/// # Errors
/// [`ApiError`] for more than [`most_tokenized`].
pub fn tokenizable(app: &App, len: usize, what: &str, path: &str) -> Result<(), ApiError> {
    let most = most_tokenized(app);
    if len <= most {
        return Ok(());
    }
    let message =
        format!("{path}: {len} {what}, and at most {most} are taken at once: send it in parts");
    Err(ApiError::param(path, message).with_code("text_too_long"))
}

/// Whether a text could be a prompt, going by its bytes alone: so many that every token would have to be the longest of all
/// are surely too many.
///
/// # Errors
/// OpenAI's error for prompts that are too long.
pub fn could_fit(app: &App, text: &str, path: &str) -> Result<(), ApiError> {
    let most = app.model.max_model_len;
    if text.len() <= most.max(SHORT) {
        return Ok(());
    }
    let longest = *app.longest_token.0.get_or_init(|| longest(&app.model.tokenizer));
    let least = text.len() / longest.max(1);
    if least < most {
        return Ok(());
    }
    let message = format!(
        "{path}: this text of {} bytes has at least {least} tokens, and this model's maximum context length is {most} tokens, for prompt and completion together: shorten it",
        text.len()
    );
    Err(ApiError::param(path, message).with_code("context_length_exceeded"))
}

/// Whether a prompt leaves room for an answer.
///
/// # Errors
/// [`ApiError`] for an empty prompt, OpenAI's for one that is too long.
pub fn fits(app: &App, prompt: &[u32], path: &str) -> Result<(), ApiError> {
    let most = app.model.max_model_len;
    if prompt.is_empty() {
        let message = format!("{path} is empty: there is nothing to continue");
        return Err(ApiError::param(path, message));
    }
    if prompt.len() < most {
        return Ok(());
    }
    let message = format!(
        "This model's maximum context length is {most} tokens, for prompt and answer together. The prompt has {}: shorten it.",
        prompt.len()
    );
    Err(ApiError::param(path, message).with_code("context_length_exceeded"))
}

fn longest(tokenizer: &Tokenizer) -> usize {
    let ids = 0..u32::try_from(tokenizer.vocab_size()).unwrap_or(u32::MAX);
    ids.filter_map(|id| tokenizer.token_bytes(id).ok()).map(<[u8]>::len).max().unwrap_or(1)
}
