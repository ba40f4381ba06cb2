//! What OpenAI's API and others' have and this server has not: told as an error that says so.

use crate::server::error::ApiError;

/// `POST /v1/embeddings`.
pub async fn embeddings() -> ApiError {
    not_here("embeddings")
}

/// `POST /v1/responses`.
pub async fn responses() -> ApiError {
    not_here("the Responses API")
}

/// `POST /v1/messages`.
pub async fn messages() -> ApiError {
    not_here("the Messages API")
}

fn not_here(what: &str) -> ApiError {
    let message =
        format!("this server does not have {what}: use /v1/chat/completions or /v1/completions");
    ApiError::not_found(message).with_code("unsupported_endpoint")
}
