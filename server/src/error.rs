//! Errors of the API: OpenAI's error object with a status code.
//!
//! ```json
//! {"error": {"message": "...", "type": "invalid_request_error", "param": "temperature", "code": null}}
//! ```

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use l4_sampler::output::ToolError;
use l5_scheduler::{EngineError, Rejection, SubmitError};
use l6_ensemble::admission::RefusalCode;
use l6_ensemble::quote::Quote;
use serde::Serialize;
use utoipa::ToSchema;

use super::protocol::quote::RefusalQuote;
use super::refusals::queue_full;

/// An error of the API: what is wrong, where, and what to do.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{message}")]
pub struct ApiError {
    /// Status code of the response.
    pub status: StatusCode,
    /// OpenAI's `type`.
    pub kind: &'static str,
    /// Message for people.
    pub message: String,
    /// Path of the invalid field of the request.
    pub param: Option<String>,
    /// Code for programs.
    pub code: Option<&'static str>,
    /// Seconds of `Retry-After`.
    pub retry_after: Option<u32>,
    /// Refusal by the door of a lane, which is counted when no other lane serves the request either.
    pub refusal: Option<Box<DoorRefusal>>,
}

/// A refusal by the door of a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DoorRefusal {
    /// Why.
    pub code: RefusalCode,
    /// Which limit of the queue was reached, `max_num_queued_reqs` or `max_num_queued_tokens`, if it was one.
    pub limit: Option<&'static str>,
    /// Whether a lane with less load would have admitted it.
    pub is_load: bool,
    /// What the request could have expected, if the door was asked.
    pub quote: Option<Quote>,
}

/// OpenAI's error object.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct ErrorResponse {
    /// The error.
    pub error: ErrorBody,
}

/// Content of OpenAI's error object.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct ErrorBody {
    /// Message for people.
    pub message: String,
    /// Kind of error.
    #[serde(rename = "type")]
    pub kind: String,
    /// Path of the invalid field of the request.
    pub param: Option<String>,
    /// Code for programs.
    ///
    /// Refusals (429): `queue_full`, the queue has no room; `deadline_unreachable`, the response would end after
    /// `deadline_ms`; `would_harm`, a request in flight would miss its deadline or wait longer than it was promised;
    /// `priority_floor`, only more urgent requests are accepted.
    ///
    /// Of an ensemble: `no_specialist` (422), the router finds none, and there is no fallback; `specialist_failed` (503),
    /// the specialist and its fallbacks are down; `specialist_not_found` (400); `needs_restart` and
    /// `invalid_configuration` (400), a file was not loaded again; `no_api_keys` (403) and `no_ensemble` (404).
    ///
    /// Of LoRA adapters: `invalid_adapter`, `adapter_already_loaded` and `too_many_adapters` (400), `adapter_not_found`
    /// and `lora_disabled` (404), `adapters_busy`, `adapter_unavailable` and `adapter_timeout` (503).
    ///
    /// `out_of_memory` (503): an adapter, or a thread for a long text or an adapter, does not fit in memory.
    ///
    /// Of replicas on other servers: `not_relayed` (400), they do not support a field; `remote_failed` and
    /// `remote_unreachable` (503).
    pub code: Option<String>,
    /// What a request that was refused for load, or by a priority floor, could have expected. Absent if it was refused
    /// before its prompt was tokenized, or before rates were measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quote: Option<RefusalQuote>,
}

impl From<ToolError> for ApiError {
    fn from(why: ToolError) -> Self {
        let error = Self::param(why.param, why.message);
        if why.unsupported { error.with_code("tools_not_supported") } else { error }
    }
}

impl ApiError {
    /// Creates an error with a status code and a `type`.
    pub fn new(status: StatusCode, kind: &'static str, message: impl Into<String>) -> Self {
        let message = message.into();
        let (param, code, retry_after, refusal) = (None, None, None, None);
        Self { status, kind, message, param, code, retry_after, refusal }
    }

    /// 400: the request is invalid.
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "invalid_request_error", message)
    }

    /// 400: a field of the request is invalid.
    pub fn param(param: impl Into<String>, message: impl Into<String>) -> Self {
        Self { param: Some(param.into()), ..Self::invalid(message) }
    }

    /// 404.
    pub fn not_found(message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, "not_found_error", message)
    }

    /// 500.
    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "internal_error", message)
    }

    /// 429, with the seconds of `Retry-After`.
    pub fn busy(message: impl Into<String>, retry_after: u32) -> Self {
        let error = Self::new(StatusCode::TOO_MANY_REQUESTS, "rate_limit_error", message);
        Self { retry_after: Some(retry_after), ..error }
    }

    /// 429: the door of a lane refused the request.
    pub fn refused(refusal: DoorRefusal, message: impl Into<String>, retry_after: u32) -> Self {
        let error = Self::busy(message, retry_after).with_code(refusal.code.name());
        Self { refusal: Some(Box::new(refusal)), ..error }
    }

    /// 504: the request timed out.
    pub fn timeout() -> Self {
        let message = "The request took longer than this server allows. Reduce `max_tokens`.";
        let error = Self::new(StatusCode::GATEWAY_TIMEOUT, "timeout_error", message);
        error.with_code("request_timeout")
    }

    /// The same error with a `code`.
    #[must_use]
    pub fn with_code(self, code: &'static str) -> Self {
        Self { code: Some(code), ..self }
    }

    /// Names the field of the request that a remote replica does not support. `guide` is the one that constrains the
    /// text; `ranks`: choices are ranked by their probabilities, for `best_of`.
    #[must_use]
    pub fn naming_relayed(self, guide: &'static str, ranks: bool) -> Self {
        let field = match self.param.as_deref() {
            _ if self.code != Some("not_relayed") => return self,
            None => guide,
            Some("logprobs") if ranks => "best_of",
            Some(_) => return self,
        };
        let message = format!(
            "`{field}` is not supported for a model on another server. Remove it from the request."
        );
        Self { param: Some(field.to_owned()), message, ..self }
    }

    /// OpenAI's error object.
    pub fn body(&self) -> ErrorResponse {
        ErrorResponse {
            error: ErrorBody {
                message: shortened(&self.message, MAX_MESSAGE_CHARS),
                kind: self.kind.to_owned(),
                param: self.param.as_deref().map(|param| shortened(param, MAX_QUOTED_CHARS)),
                code: self.code.map(str::to_owned),
                quote: self.refusal.as_ref().and_then(|own| RefusalQuote::of(own.quote.as_ref()?)),
            },
        }
    }
}

/// Maximum number of characters of a message, which may quote the request.
const MAX_MESSAGE_CHARS: usize = 1000;

/// Maximum number of characters that a message quotes of a request.
const MAX_QUOTED_CHARS: usize = 200;

/// Text of a request, or of another server, shortened for an error message.
pub fn quoted(text: &str) -> String {
    shortened(text, MAX_QUOTED_CHARS)
}

/// Names, each in backticks.
pub fn listed<'a>(names: impl Iterator<Item = &'a str>) -> String {
    names.map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
}

/// A text of at most about `most` characters: the middle of a longer one is left out, since a message says at its
/// beginning what is wrong and at its end what to do.
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

/// The code of a response that is an error, for the access log: an extension of the response.
#[derive(Clone, Copy, Debug)]
pub struct ErrorCode(pub &'static str);

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = (self.status, Json(self.body())).into_response();
        if let Some(code) = self.code {
            response.extensions_mut().insert(ErrorCode(code));
        }
        if let Some(seconds) = self.retry_after {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }
}

/// Errors of the engine as errors of the API. [`SubmitError::Full`] depends on the engine's load:
/// [`super::backpressure`] converts it.
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
            | SubmitError::NoTokenizer(_)
            | SubmitError::Adapter(_) => Self::invalid(message),
            SubmitError::NotRelayed(what) => {
                let param = match what {
                    "log probabilities" => Some("logprobs".to_owned()),
                    "infinite biases" => Some("logit_bias".to_owned()),
                    // Several fields make a guide: the endpoint knows which one.
                    _ => None,
                };
                Self { param, ..Self::invalid(message).with_code("not_relayed") }
            }
            SubmitError::Full { waiting, .. } => {
                Self::busy(queue_full(waiting), 1).with_code("queue_full")
            }
            SubmitError::Draining => unavailable(message, "draining"),
            SubmitError::Stopped(EngineError::ShutDown) => unavailable(message, "shut_down"),
            SubmitError::Stopped(EngineError::Unreachable(_)) => {
                unavailable(message, "remote_unreachable")
            }
            SubmitError::Stopped(EngineError::Failed(_)) => {
                Self::internal(message).with_code("engine_failed")
            }
        }
    }
}

/// 503: the server does not accept requests.
pub fn unavailable(message: impl Into<String>, code: &'static str) -> ApiError {
    let error = ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "service_unavailable", message);
    ApiError { retry_after: Some(5), ..error.with_code(code) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_remote_server_does_not_support_is_named_by_its_field() {
        let of = |what, ranks| {
            ApiError::from(SubmitError::NotRelayed(what)).naming_relayed("response_format", ranks)
        };
        assert_eq!(of("log probabilities", false).param.as_deref(), Some("logprobs"));
        assert_eq!(of("log probabilities", true).param.as_deref(), Some("best_of"));
        let guide = of("guides", false);
        assert_eq!(
            (guide.param.as_deref(), guide.code),
            (Some("response_format"), Some("not_relayed"))
        );
        assert!(guide.message.starts_with("`response_format` is not supported"), "{guide}");
        let other = ApiError::invalid("x");
        assert_eq!(other.clone().naming_relayed("response_format", true), other);
    }

    #[test]
    fn an_error_repeats_only_the_ends_of_a_long_text() {
        assert_eq!(quoted("short"), "short");
        let exactly = "\u{fc}".repeat(200);
        assert_eq!(quoted(&exactly), exactly);
        let long = format!("a{}z", "\u{fc}".repeat(1 << 20));
        let short = quoted(&long);
        assert!(short.starts_with("a\u{fc}") && short.ends_with("\u{fc}z"), "{short}");
        assert!(short.contains("2096756 bytes left out"), "{short}");
        let error = ApiError::param(long.clone(), format!("{long}: not here")).body().error;
        assert!(error.message.len() < 2200 && error.message.ends_with("not here"));
        assert!(error.param.unwrap().len() < 500);
    }
}
