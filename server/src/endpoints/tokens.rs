//! `POST /tokenize` and `/detokenize`.

use axum::Json;
use axum::extract::State;

use crate::background::Background;
use crate::chat::prompt::{self, Rendering};
use crate::error::ApiError;
use crate::json::Body;
use crate::lanes::{Lanes, ServedLane};
use crate::model::ServedModel;
use crate::openapi::BodyErrors;
use crate::protocol::tokens::{DetokenizeRequest, Detokenized, TokenizeRequest, Tokenized};
use crate::request::Generation;
use crate::tokenise::Encoder;

/// Tokenizes a text or a conversation.
///
/// # Errors
/// [`ApiError`].
#[utoipa::path(post, path = "/tokenize", request_body = TokenizeRequest, security((), ("key" = [])), responses(
    (status = 200, description = "The tokens", body = Tokenized),
    BodyErrors,
))]
pub async fn tokenize(
    State(lanes): State<Lanes>,
    State(background): State<Background>,
    Body(mut request, _memory): Body<TokenizeRequest>,
) -> Result<Json<Tokenized>, ApiError> {
    let Generation { model, encoder, defaults, .. } = of_model(&lanes, request.model.as_deref())?;
    if let Some(messages) = &mut request.messages {
        defaults.add_system_prompt(messages);
    }
    let return_strs = request.return_token_strs == Some(true);
    let tokens = match (&request.prompt, &request.messages) {
        (Some(prompt), None) => {
            let special = request.add_special_tokens.unwrap_or(true);
            encoder.check_tokenizable(prompt.len(), "bytes", "prompt")?;
            encoder.encode(prompt.clone(), special, "prompt").await?
        }
        (None, Some(_)) => {
            let (bytes, model) = (request.bytes(), model.clone());
            background.run(bytes, move || conversation(&model, &encoder, &request)).await??
        }
        (Some(_), Some(_)) => {
            let message = "`prompt` and `messages` cannot both be given. Remove one of them.";
            return Err(ApiError::param("messages", message));
        }
        (None, None) => {
            let message = "Either `prompt` or `messages` is required.";
            return Err(ApiError::param("prompt", message));
        }
    };
    let spelled = |id: &u32| model.tokenizer.id_to_token(*id).unwrap_or_default();
    let token_strs = return_strs.then(|| tokens.iter().map(spelled).collect());
    let max_model_len = model.max_model_len;
    Ok(Json(Tokenized { count: tokens.len(), max_model_len, tokens, token_strs }))
}

/// Model, tokenizer and defaults of a request. An ensemble's own name stands for its first specialist: specialists whose
/// tokenizers or system prompts differ are named by the client.
fn of_model(lanes: &Lanes, name: Option<&str>) -> Result<Generation, ApiError> {
    let ServedLane { generation, .. } = &lanes[lanes.of_model(name)?.unwrap_or_default()];
    Ok(generation.clone())
}

/// Tokens of a conversation: the prompt that `/v1/chat/completions` would make of it.
fn conversation(
    model: &ServedModel,
    encoder: &Encoder,
    request: &TokenizeRequest,
) -> Result<Vec<u32>, ApiError> {
    let open = request.continue_final_message == Some(true);
    let rendering = Rendering {
        tools: request.tools.as_deref().unwrap_or_default(),
        variables: request.chat_template_kwargs.clone().unwrap_or_default(),
        add_generation_prompt: request.add_generation_prompt.unwrap_or(!open),
        continue_final_message: open,
    };
    let messages = request.messages.as_deref().unwrap_or_default();
    let text = prompt::render(model, messages, &rendering)?;
    encoder.check_tokenizable(text.len(), "bytes", "messages")?;
    prompt::encode(model, &text)
}

/// Decodes tokens to text.
///
/// # Errors
/// [`ApiError`].
#[utoipa::path(post, path = "/detokenize", request_body = DetokenizeRequest, security((), ("key" = [])), responses(
    (status = 200, description = "The text", body = Detokenized),
    BodyErrors,
))]
pub async fn detokenize(
    State(lanes): State<Lanes>,
    State(background): State<Background>,
    Body(request, _memory): Body<DetokenizeRequest>,
) -> Result<Json<Detokenized>, ApiError> {
    let Generation { model, encoder, .. } = of_model(&lanes, request.model.as_deref())?;
    encoder.check_tokenizable(request.tokens.len(), "tokens", "tokens")?;
    let text = background.run(request.tokens.len(), move || {
        let tokenizer = &model.tokenizer;
        let last = tokenizer.vocab_size();
        match request.tokens.iter().position(|id| *id as usize >= last) {
            Some(at) => {
                let path = format!("tokens[{at}]");
                let message = format!("`{path}` must be a token id below {last}");
                Err(ApiError::param(path, message))
            }
            None => tokenizer
                .decode(&request.tokens, false)
                .map_err(|why| ApiError::param("tokens", format!("tokens: {why}"))),
        }
    });
    Ok(Json(Detokenized { prompt: text.await?? }))
}
