//! Endpoints of OpenAI's and Anthropic's APIs that this server does not support: each returns an error.

use crate::error::{ApiError, ErrorResponse};
use crate::openapi::KeyErrors;

/// `POST /v1/embeddings`.
#[utoipa::path(post, path = "/v1/embeddings", security((), ("key" = [])), responses(
    (status = 404, description = "Always: this server does not support the endpoint", body = ErrorResponse),
    KeyErrors,
))]
pub async fn embeddings() -> ApiError {
    unsupported("embeddings")
}

/// `POST /v1/responses`.
#[utoipa::path(post, path = "/v1/responses", security((), ("key" = [])), responses(
    (status = 404, description = "Always: this server does not support the endpoint", body = ErrorResponse),
    KeyErrors,
))]
pub async fn responses() -> ApiError {
    unsupported("the Responses API")
}

/// `POST /v1/messages`.
#[utoipa::path(post, path = "/v1/messages", security((), ("key" = [])), responses(
    (status = 404, description = "Always: this server does not support the endpoint", body = ErrorResponse),
    KeyErrors,
))]
pub async fn messages() -> ApiError {
    unsupported("the Messages API")
}

fn unsupported(what: &str) -> ApiError {
    let message = format!(
        "This server does not support {what}. Use /v1/chat/completions or /v1/completions."
    );
    ApiError::not_found(message).with_code("unsupported_endpoint")
}
