//! `POST /v1/chat/completions`: a conversation to go on with.

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};

use super::known_model;
use crate::server::answers::{Answers, finish_reason};
use crate::server::app::Shared;
use crate::server::chat::prompt::{Rendering, render};
use crate::server::error::ApiError;
use crate::server::json::Body;
use crate::server::openapi::WorkTroubles;
use crate::server::model::unix_time;
use crate::server::protocol::chat::{AssistantMessage, ChatChoice, ChatCompletion, ChatRequest};
use crate::server::protocol::common::Usage;
use crate::server::request::plan;

/// Go on with a conversation.
#[utoipa::path(post, path = "/v1/chat/completions", request_body = ChatRequest, security((), ("key" = [])), responses(
    (status = 200, content(
        (ChatCompletion = "application/json"),
        (String = "text/event-stream"),
    ), description = "The answers whole or, with `stream`, events: each is `data: ` and a ChatChunk, the last `data: [DONE]`"),
    WorkTroubles,
))]
pub async fn create(
    State(app): State<Shared>,
    Body(request): Body<ChatRequest>,
) -> Result<Response, ApiError> {
    known_model(&app, request.own.model.as_deref())?;
    let max_tokens = request.own.max_completion_tokens.or(request.own.max_tokens);
    let plan = plan(&app, &request.sampling, max_tokens, None)?;
    let rendering = Rendering { add_generation_prompt: true, ..Rendering::default() };
    let text = render(&app.model, &request.own.messages, &rendering)?;
    let prompt = app.model.tokenizer.encode(&text, false);
    let prompt = prompt.map_err(|why| ApiError::param("messages", why.to_string()))?;
    let prompt_tokens = prompt.len();
    let mut answers = Answers::submit(&app, plan.for_prompt(prompt).collect()).await?;
    let pieces = answers.all().await?;
    let completion = pieces.iter().map(|piece| piece.tokens.len()).sum();
    let choices = pieces.into_iter().enumerate().map(|(index, piece)| ChatChoice {
        index,
        finish_reason: piece.end.as_ref().map(|end| finish_reason(end.finish)),
        message: AssistantMessage {
            role: "assistant",
            content: Some(piece.text),
            ..Default::default()
        },
        logprobs: None,
        stop_reason: None,
        token_ids: None,
    });
    let answer = ChatCompletion {
        id: "chatcmpl-0".into(),
        object: "chat.completion",
        created: unix_time(),
        model: app.model.name().into(),
        choices: choices.collect(),
        usage: Usage::new(prompt_tokens, 0, completion),
    };
    Ok(Json(answer).into_response())
}
