//! Text to tokens, on whose time.
//!
//! A short text is cut into tokens where it arrives: that takes less time than to hand it to another thread. A long one
//! takes milliseconds to seconds, and the few threads that read and write for everybody must not be away so long: it goes
//! to a thread of its own, and only so many may be there at once. A text that is too long for the model whatever its tokens
//! are is refused before anybody looks at it.

use std::sync::{Arc, OnceLock};

use l2_model::tokenizer::Tokenizer;
use tokio::sync::Semaphore;

use super::app::App;
use super::error::ApiError;

/// Bytes of text that are cut where they arrive: well below a millisecond.
const SHORT: usize = 4 << 10;

/// Long texts that are cut at once. The engine needs the processors more.
const AT_ONCE: usize = 2;

/// Who may cut long texts into tokens.
#[derive(Debug)]
pub struct Tokenising {
    seats: Arc<Semaphore>,
    /// The bytes of the longest token. Found when the first long text comes.
    longest: OnceLock<usize>,
}

impl Default for Tokenising {
    fn default() -> Self {
        Self { seats: Arc::new(Semaphore::new(AT_ONCE)), longest: OnceLock::new() }
    }
}

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
        aside(app, move |app| app.model.tokenizer.encode(&text, special)).await?
    };
    tokens.map_err(|why| ApiError::param(path, format!("{path}: {why}")))
}

/// Do something slow with text or tokens without keeping others from theirs.
///
/// # Errors
/// [`ApiError`] if it panicked.
pub async fn aside<T: Send + 'static>(
    app: &Arc<App>,
    work: impl FnOnce(&App) -> T + Send + 'static,
) -> Result<T, ApiError> {
    let seat = app.tokenising.seats.clone().acquire_owned().await;
    let app = app.clone();
    let done = tokio::task::spawn_blocking(move || {
        // Held until the work is done, also when nobody waits for it any more.
        let _seat = seat;
        work(&app)
    });
    done.await.map_err(|why| ApiError::internal(format!("a text could not be read: {why}")))
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
    let longest = *app.tokenising.longest.get_or_init(|| longest(&app.model.tokenizer));
    let least = text.len() / longest.max(1);
    if least < most {
        return Ok(());
    }
    let message = format!(
        "{path}: this text of {} bytes has at least {least} tokens, and prompt and answer together have at most {most}: shorten it",
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
