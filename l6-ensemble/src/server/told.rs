//! What a response's head tells beside its body: who answered, how long the request waited, what was in the cache.
//!
//! ```text
//! x-strata-model: tiny            the name in responses
//! x-strata-replica: 0             the engine's number
//! x-strata-queue-ms: 3            from the request's arrival at the engine to its first step
//! x-strata-cached-tokens: 1024    tokens of the prompt that did not have to be computed
//! ```

use axum::http::{HeaderMap, HeaderName, HeaderValue};

use super::answers::Answers;
use super::app::App;

/// The name in responses.
pub const MODEL: HeaderName = HeaderName::from_static("x-strata-model");
/// The engine's number.
pub const REPLICA: HeaderName = HeaderName::from_static("x-strata-replica");
/// Milliseconds between arrival and first step.
pub const QUEUE_MS: HeaderName = HeaderName::from_static("x-strata-queue-ms");
/// Tokens of prompts that were in the cache.
pub const CACHED_TOKENS: HeaderName = HeaderName::from_static("x-strata-cached-tokens");

/// The only engine's number.
const ENGINE: u32 = 0;

/// What is known of a request whose first piece is there.
pub fn headers(app: &App, answers: &Answers) -> HeaderMap {
    let mut headers = HeaderMap::new();
    // A name that no header can hold is not told.
    if let Ok(name) = HeaderValue::from_bytes(app.model.name().as_bytes()) {
        headers.insert(MODEL, name);
    }
    headers.insert(REPLICA, ENGINE.into());
    if let Some(queued) = answers.queued() {
        headers.insert(QUEUE_MS, u64::try_from(queued.as_millis()).unwrap_or(u64::MAX).into());
    }
    headers.insert(CACHED_TOKENS, answers.cached().into());
    headers
}
