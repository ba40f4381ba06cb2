//! What OpenAI's API and others' have and this server has not: told as an error that says so.

use crate::server::error::{ApiError, ErrorResponse};
use crate::server::openapi::KeyTroubles;

/// `POST /v1/embeddings`.
#[utoipa::path(post, path = "/v1/embeddings", security((), ("key" = [])), responses(
    (status = 404, description = "Always: this server does not have it", body = ErrorResponse),
    KeyTroubles,
))]
pub async fn embeddings() -> ApiError {
    not_here("embeddings")
}

/// `POST /v1/responses`.
#[utoipa::path(post, path = "/v1/responses", security((), ("key" = [])), responses(
    (status = 404, description = "Always: this server does not have it", body = ErrorResponse),
    KeyTroubles,
))]
pub async fn responses() -> ApiError {
    not_here("the Responses API")
}

/// `POST /v1/messages`.
#[utoipa::path(post, path = "/v1/messages", security((), ("key" = [])), responses(
    (status = 404, description = "Always: this server does not have it", body = ErrorResponse),
    KeyTroubles,
))]
pub async fn messages() -> ApiError {
    not_here("the Messages API")
}

fn not_here(what: &str) -> ApiError {
    let message =
        format!("this server does not have {what}: use /v1/chat/completions or /v1/completions");
    ApiError::not_found(message).with_code("unsupported_endpoint")
}
