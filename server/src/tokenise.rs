//! Tokenizes the texts of requests.
//!
//! A short text is tokenized on the thread of its task: that takes less time than a switch to another thread. A long
//! one takes milliseconds to seconds, in the [`Background`]. A text that is certainly too long for the model is
//! rejected before it is tokenized.

use std::sync::{Arc, OnceLock};

use l2_model::tokenizer::Tokenizer;

use super::background::{Background, MAX_SHORT_BYTES};
use super::error::ApiError;
use super::model::ServedModel;

/// Maximum number of bytes of text that `/tokenize` accepts: for any model, or per token of the context if that is
/// more.
const MIN_TOKENIZED_BYTES: usize = 256 << 10;
const TOKENIZED_BYTES_PER_TOKEN: usize = 8;

/// Tokenizes texts, and finds those that are too long. Clones share everything.
#[derive(Clone, Debug)]
pub struct Encoder {
    model: Arc<ServedModel>,
    background: Background,
    /// Number of bytes of the longest token, computed for the first long text.
    longest_token: Arc<OnceLock<usize>>,
}

impl Encoder {
    /// Creates the encoder of a model.
    pub fn new(model: Arc<ServedModel>, background: Background) -> Self {
        Self { model, background, longest_token: Arc::default() }
    }

    /// Threads for long texts.
    pub fn background(&self) -> &Background {
        &self.background
    }

    /// Tokenizes a text. `path` is its field.
    ///
    /// # Errors
    /// [`ApiError`], as the tokenizer reports it.
    pub async fn encode(
        &self,
        text: String,
        special: bool,
        path: &str,
    ) -> Result<Vec<u32>, ApiError> {
        let tokens = if text.len() <= MAX_SHORT_BYTES {
            self.model.tokenizer.encode(&text, special)
        } else {
            let bytes = text.len();
            let model = self.model.clone();
            self.background.run(bytes, move || model.tokenizer.encode(&text, special)).await?
        };
        tokens.map_err(|why| ApiError::param(path, format!("{path}: {why}")))
    }

    /// Maximum number of bytes of `/tokenize`, and of tokens of `/detokenize`: more than fits the model, for clients
    /// that count before they cut.
    pub fn max_tokenized(&self) -> usize {
        MIN_TOKENIZED_BYTES.max(self.model.max_model_len.saturating_mul(TOKENIZED_BYTES_PER_TOKEN))
    }

    /// Checks a length against [`Encoder::max_tokenized`].
    ///
    /// # Errors
    /// [`ApiError`] for more than [`Encoder::max_tokenized`].
    pub fn check_tokenizable(&self, len: usize, what: &str, path: &str) -> Result<(), ApiError> {
        let most = self.max_tokenized();
        if len <= most {
            return Ok(());
        }
        let message = format!("`{path}` must be at most {most} {what} long, got {len}: split it");
        Err(ApiError::param(path, message).with_code("text_too_long"))
    }

    /// Rejects a text that is too long for a prompt by its bytes alone: even if each token were the longest of the
    /// vocabulary.
    ///
    /// # Errors
    /// OpenAI's error for prompts that are too long.
    pub fn check_text(&self, text: &str, path: &str) -> Result<(), ApiError> {
        let most = self.model.max_model_len;
        if text.len() <= most.max(MAX_SHORT_BYTES) {
            return Ok(());
        }
        let longest = *self.longest_token.get_or_init(|| max_token_bytes(&self.model.tokenizer));
        let least = text.len() / longest.max(1);
        if least < most {
            return Ok(());
        }
        let message = format!(
            "This model's maximum context length is {most} tokens, for prompt and completion together. However, \
             `{path}` of {} bytes has at least {least} tokens. Please reduce the length of the prompt.",
            text.len()
        );
        Err(ApiError::param(path, message).with_code("context_length_exceeded"))
    }

    /// Checks that a prompt has a token and leaves room for a completion.
    ///
    /// # Errors
    /// [`ApiError`] for an empty prompt, and OpenAI's error for one that is too long.
    pub fn check_prompt(&self, prompt: &[u32], path: &str) -> Result<(), ApiError> {
        let most = self.model.max_model_len;
        if prompt.is_empty() {
            let message = format!("`{path}` must have at least 1 token");
            return Err(ApiError::param(path, message));
        }
        if prompt.len() < most {
            return Ok(());
        }
        let message = format!(
            "This model's maximum context length is {most} tokens, for prompt and completion together. However, your \
             prompt has {} tokens. Please reduce the length of the prompt.",
            prompt.len()
        );
        Err(ApiError::param(path, message).with_code("context_length_exceeded"))
    }
}

fn max_token_bytes(tokenizer: &Tokenizer) -> usize {
    let ids = 0..u32::try_from(tokenizer.vocab_size()).unwrap_or(u32::MAX);
    ids.filter_map(|id| tokenizer.token_bytes(id).ok()).map(<[u8]>::len).max().unwrap_or(1)
}
