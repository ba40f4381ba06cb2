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

    /// The same error with a word for programs.
    #[must_use]
    pub fn with_code(self, code: &'static str) -> Self {
        Self { code: Some(code), ..self }
    }

    /// The object that OpenAI has for it.
    pub fn body(&self) -> ErrorResponse {
        ErrorResponse {
            error: ErrorBody {
                message: self.message.clone(),
                kind: self.kind.to_owned(),
                param: self.param.clone(),
                code: self.code.map(str::to_owned),
            },
        }
    }
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
