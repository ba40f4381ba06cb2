//! `POST /tokenize` and `/detokenize`.

use axum::Json;
use axum::extract::State;

use super::known_model;
use crate::server::app::{App, Shared};
use crate::server::background;
use crate::server::chat::prompt::{self, Rendering};
use crate::server::error::ApiError;
use crate::server::json::Body;
use crate::server::openapi::BodyTroubles;
use crate::server::protocol::tokens::{DetokenizeRequest, Detokenized, TokenizeRequest, Tokenized};
use crate::server::tokenise::{encode, tokenizable};

/// A text, or a conversation, as tokens.
///
/// # Errors
/// [`ApiError`].
#[utoipa::path(post, path = "/tokenize", request_body = TokenizeRequest, security((), ("key" = [])), responses(
    (status = 200, description = "The tokens", body = Tokenized),
    BodyTroubles,
))]
pub async fn tokenize(
    State(app): State<Shared>,
    Body(request, _held): Body<TokenizeRequest>,
) -> Result<Json<Tokenized>, ApiError> {
    known_model(&app, request.model.as_deref())?;
    let told = request.return_token_strs == Some(true);
    let tokens = match (&request.prompt, &request.messages) {
        (Some(prompt), None) => {
            let special = request.add_special_tokens.unwrap_or(true);
            tokenizable(&app, prompt.len(), "bytes", "prompt")?;
            encode(&app, prompt.clone(), special, "prompt").await?
        }
        (None, Some(_)) => {
            background::run(&app, request.bytes(), move |app| conversation(app, &request)).await??
        }
        (Some(_), Some(_)) => {
            let message = "messages: there is a prompt already; leave out one of them";
            return Err(ApiError::param("messages", message));
        }
        (None, None) => {
            let message = "prompt: missing; there should be a text, or messages";
            return Err(ApiError::param("prompt", message));
        }
    };
    let spelled = |id: &u32| app.model.tokenizer.id_to_token(*id).unwrap_or_default();
    let token_strs = told.then(|| tokens.iter().map(spelled).collect());
    let max_model_len = app.model.max_model_len;
    Ok(Json(Tokenized { count: tokens.len(), max_model_len, tokens, token_strs }))
}

/// The tokens that a conversation is for the model: those that `/v1/chat/completions` would prompt it with.
fn conversation(app: &App, request: &TokenizeRequest) -> Result<Vec<u32>, ApiError> {
    let model = &app.model;
    let open = request.continue_final_message == Some(true);
    let rendering = Rendering {
        tools: request.tools.as_deref().unwrap_or_default(),
        variables: request.chat_template_kwargs.clone().unwrap_or_default(),
        add_generation_prompt: request.add_generation_prompt.unwrap_or(!open),
        continue_final_message: open,
    };
    let messages = request.messages.as_deref().unwrap_or_default();
    let text = prompt::render(model, messages, &rendering)?;
    tokenizable(app, text.len(), "bytes", "messages")?;
    prompt::encode(model, &text)
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
    Body(request, _held): Body<DetokenizeRequest>,
) -> Result<Json<Detokenized>, ApiError> {
    known_model(&app, request.model.as_deref())?;
    tokenizable(&app, request.tokens.len(), "tokens", "tokens")?;
    let text = background::run(&app, request.tokens.len(), move |app| {
        let tokenizer = &app.model.tokenizer;
        let last = tokenizer.vocab_size();
        match request.tokens.iter().position(|id| *id as usize >= last) {
            Some(at) => {
                let path = format!("tokens[{at}]");
                let message = format!("{path}: the tokenizer has tokens below {last}");
                Err(ApiError::param(path, message))
            }
            None => tokenizer
                .decode(&request.tokens, false)
                .map_err(|why| ApiError::param("tokens", format!("tokens: {why}"))),
        }
    });
    Ok(Json(Detokenized { prompt: text.await?? }))
}
