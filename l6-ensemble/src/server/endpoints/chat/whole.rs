//! Answers told whole.

use axum::Json;
use axum::response::{IntoResponse, Response};

use super::Chat;
use super::logprobs::logprobs;
use crate::server::error::ApiError;
use crate::server::protocol::chat::{ChatChoice, ChatCompletion};

/// Wait for all answers, and tell them.
///
/// # Errors
/// [`ApiError`]: the time is up, or the engine could not go on.
pub async fn whole(mut chat: Chat) -> Result<Response, ApiError> {
    let pieces = chat.answers.all().await?;
    let completion = pieces.iter().map(|piece| piece.tokens.len()).sum();
    let mut choices = Vec::with_capacity(pieces.len());
    for (index, piece) in pieces.into_iter().enumerate() {
        let mut reader = chat.reader.clone();
        let message = reader.read_whole(&piece.text);
        let end = piece.end.as_ref().map(|end| chat.end(&reader, end, false));
        let (finish_reason, stop_reason) = end.unzip();
        choices.push(ChatChoice {
            index,
            message,
            logprobs: chat.logprobs.then(|| logprobs(&chat.app.model.tokenizer, &piece.logprobs)),
            finish_reason,
            stop_reason: stop_reason.flatten(),
            token_ids: chat.token_ids.then_some(piece.tokens),
        });
    }
    let usage = chat.usage(completion);
    let headers = chat.headers();
    let body = ChatCompletion {
        id: chat.id,
        object: "chat.completion",
        created: chat.created,
        model: chat.app.model.name().into(),
        choices,
        usage,
        prompt_token_ids: chat.token_ids.then_some(chat.prompt),
    };
    Ok((headers, Json(body)).into_response())
}
