//! What a client is told when it does not get what it asked for: OpenAI's error object, with a status code.
//!
//! ```json
//! {"error": {"message": "...", "type": "invalid_request_error", "param": "temperature", "code": null}}
//! ```

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use l5_scheduler::{EngineError, Rejection, SubmitError};
use serde::Serialize;
use utoipa::ToSchema;

/// What went wrong, and what to do about it.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{message}")]
pub struct ApiError {
    /// The status of the response.
    pub status: StatusCode,
    /// OpenAI's kind of error.
    pub kind: &'static str,
    /// One or two sentences for a person.
    pub message: String,
    /// The field of the request that is to blame, as a path.
    pub param: Option<String>,
    /// A word for programs.
    pub code: Option<&'static str>,
    /// In how many seconds it is worth trying again.
    pub retry_after: Option<u32>,
}

/// OpenAI's error object.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct ErrorResponse {
    /// The error.
    pub error: ErrorBody,
}

/// What is in OpenAI's error object.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct ErrorBody {
    /// For a person.
    pub message: String,
    /// What kind of error it is.
    #[serde(rename = "type")]
    pub kind: String,
    /// The field of the request that is to blame.
    pub param: Option<String>,
    /// For a program.
    pub code: Option<String>,
}

impl ApiError {
    /// An error of some status.
    pub fn new(status: StatusCode, kind: &'static str, message: impl Into<String>) -> Self {
        Self { status, kind, message: message.into(), param: None, code: None, retry_after: None }
    }

    /// The request cannot be meant.
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "invalid_request_error", message)
    }

    /// A field of the request cannot be meant.
    pub fn param(param: impl Into<String>, message: impl Into<String>) -> Self {
        Self { param: Some(param.into()), ..Self::invalid(message) }
    }

    /// Something that is not there.
    pub fn not_found(message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, "not_found_error", message)
    }

    /// Our fault.
    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "internal_error", message)
    }

    /// Not now. Seconds are those of `Retry-After`.
    pub fn busy(message: impl Into<String>, retry_after: u32) -> Self {
        let error = Self::new(StatusCode::TOO_MANY_REQUESTS, "rate_limit_error", message);
        Self { retry_after: Some(retry_after), ..error }
    }

    /// The request's time is up.
    pub fn timeout() -> Self {
        let message = "the request took longer than this server allows: ask for fewer tokens";
        let error = Self::new(StatusCode::GATEWAY_TIMEOUT, "timeout_error", message);
        error.with_code("request_timeout")
    }

    /// The same error with a word for programs.
    #[must_use]
    pub fn with_code(self, code: &'static str) -> Self {
        Self { code: Some(code), ..self }
    }

    /// The object that OpenAI has for it.
    pub fn body(&self) -> ErrorResponse {
        ErrorResponse {
            error: ErrorBody {
                message: shortened(&self.message, MAX_MESSAGE),
                kind: self.kind.to_owned(),
                param: self.param.as_deref().map(|param| shortened(param, MAX_QUOTED)),
                code: self.code.map(str::to_owned),
            },
        }
    }
}

/// Maximum number of characters of a message. Those of this server are shorter; a client's own words may be in them.
const MAX_MESSAGE: usize = 1000;

/// Maximum number of characters of a client's own words, where an error quotes them.
const MAX_QUOTED: usize = 200;

/// A client's own words, as far as an error repeats them.
pub fn quoted(text: &str) -> String {
    shortened(text, MAX_QUOTED)
}

/// A text without its middle, if it is longer than so many characters: what is wrong stands at a message's beginning, and
/// what to do at its end.
fn shortened(text: &str, most: usize) -> String {
    if text.len() <= most || text.chars().nth(most).is_none() {
        return text.to_owned();
    }
    let half = most / 2;
    let head: String = text.chars().take(half).collect();
    let tail: Vec<char> = text.chars().rev().take(half).collect();
    let left_out = text.len() - head.len() - tail.iter().map(|c| c.len_utf8()).sum::<usize>();
    let tail: String = tail.into_iter().rev().collect();
    format!("{head}... ({left_out} bytes left out) ...{tail}")
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = (self.status, Json(self.body())).into_response();
        if let Some(seconds) = self.retry_after {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }
}

/// What an engine's refusal means to a client. [`SubmitError::Full`] needs to know the engine's pace, and is turned into an
/// error by [`super::backpressure`].
impl From<SubmitError> for ApiError {
    fn from(why: SubmitError) -> Self {
        let message = why.to_string();
        match why {
            SubmitError::Rejected(Rejection::MaxModelLen { .. }) => {
                Self::invalid(message).with_code("context_length_exceeded")
            }
            SubmitError::Rejected(_)
            | SubmitError::Params(_)
            | SubmitError::UnknownToken { .. }
            | SubmitError::Guide(_)
            | SubmitError::NoTokenizer(_) => Self::invalid(message),
            SubmitError::Full { .. } => Self::busy(message, 1).with_code("queue_full"),
            SubmitError::Draining => unavailable(message, "draining"),
            SubmitError::Stopped(EngineError::ShutDown) => unavailable(message, "shut_down"),
            SubmitError::Stopped(EngineError::Failed(_)) => {
                Self::internal(message).with_code("engine_failed")
            }
        }
    }
}

/// The server is there and does not take requests.
pub fn unavailable(message: impl Into<String>, code: &'static str) -> ApiError {
    let error = ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "service_unavailable", message);
    ApiError { retry_after: Some(5), ..error.with_code(code) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_repeats_only_the_ends_of_a_long_text() {
        assert_eq!(quoted("short"), "short");
        let exactly = "\u{fc}".repeat(200);
        assert_eq!(quoted(&exactly), exactly);
        let long = format!("a{}z", "\u{fc}".repeat(1 << 20));
        let told = quoted(&long);
        assert!(told.starts_with("a\u{fc}") && told.ends_with("\u{fc}z"), "{told}");
        assert!(told.contains("2096756 bytes left out"), "{told}");
        let error = ApiError::param(long.clone(), format!("{long}: not here")).body().error;
        assert!(error.message.len() < 2200 && error.message.ends_with("not here"));
        assert!(error.param.unwrap().len() < 500);
    }
}
