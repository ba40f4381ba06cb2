//! `POST /tokenize` and `/detokenize`.

use axum::Json;
use axum::extract::State;

use super::known_model;
use crate::server::app::Shared;
use crate::server::error::ApiError;
use crate::server::json::Body;
use crate::server::openapi::BodyTroubles;
use crate::server::protocol::tokens::{DetokenizeRequest, Detokenized, TokenizeRequest, Tokenized};

/// A text as tokens.
///
/// # Errors
/// [`ApiError`].
#[utoipa::path(post, path = "/tokenize", request_body = TokenizeRequest, security((), ("key" = [])), responses(
    (status = 200, description = "The tokens", body = Tokenized),
    BodyTroubles,
))]
pub async fn tokenize(
    State(app): State<Shared>,
    Body(request): Body<TokenizeRequest>,
) -> Result<Json<Tokenized>, ApiError> {
    known_model(&app, request.model.as_deref())?;
    let text = request.prompt.unwrap_or_default();
    let tokens = app.model.tokenizer.encode(&text, request.add_special_tokens.unwrap_or(true));
    let tokens = tokens.map_err(|why| ApiError::param("prompt", why.to_string()))?;
    let max_model_len = app.model.max_model_len;
    Ok(Json(Tokenized { count: tokens.len(), max_model_len, tokens, token_strs: None }))
}

/// Tokens as a text.
///
/// # Errors
/// [`ApiError`].
#[utoipa::path(post, path = "/detokenize", request_body = DetokenizeRequest, security((), ("key" = [])), responses(
    (status = 200, description = "The text", body = Detokenized),
    BodyTroubles,
))]
pub async fn detokenize(
    State(app): State<Shared>,
    Body(request): Body<DetokenizeRequest>,
) -> Result<Json<Detokenized>, ApiError> {
    known_model(&app, request.model.as_deref())?;
    let text = app.model.tokenizer.decode(&request.tokens, false);
    let prompt = text.map_err(|why| ApiError::param("tokens", why.to_string()))?;
    Ok(Json(Detokenized { prompt }))
}
