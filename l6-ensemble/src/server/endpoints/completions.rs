//! `POST /v1/completions`: a text to continue.

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use l5_scheduler::Piece;

use super::known_model;
use crate::server::answers::{Answers, failure, finish_reason};
use crate::server::app::Shared;
use crate::server::error::ApiError;
use crate::server::json::Body;
use crate::server::openapi::WorkTroubles;
use crate::server::model::unix_time;
use crate::server::protocol::common::Usage;
use crate::server::protocol::completions::{
    Completion, CompletionChoice, CompletionRequest, PromptField,
};
use crate::server::request::plan;
use crate::server::sse;

/// Tokens of an answer where nobody says how many, as at OpenAI.
const DEFAULT_MAX_TOKENS: usize = 16;

/// Continue a text.
#[utoipa::path(post, path = "/v1/completions", request_body = CompletionRequest, security((), ("key" = [])), responses(
    (status = 200, content(
        (Completion = "application/json"),
        (String = "text/event-stream"),
    ), description = "The answers whole or, with `stream`, events: each is `data: ` and a Completion, the last `data: [DONE]`"),
    WorkTroubles,
))]
pub async fn create(
    State(app): State<Shared>,
    Body(request): Body<CompletionRequest>,
) -> Result<Response, ApiError> {
    known_model(&app, request.own.model.as_deref())?;
    let max_tokens = request.own.max_tokens.unwrap_or(DEFAULT_MAX_TOKENS);
    let mut plan = plan(&app, &request.sampling, Some(max_tokens), request.own.logprobs)?;
    plan.template.continues = true;
    let prompts =
        prompts(&app, &request.own.prompt, request.own.add_special_tokens.unwrap_or(true))?;
    let prompt_tokens = prompts.iter().map(Vec::len).sum();
    let requests = prompts.into_iter().flat_map(|prompt| plan.for_prompt(prompt)).collect();
    let answers = Answers::submit(&app, requests).await?;
    let job = Job {
        answers,
        id: "cmpl-0".into(),
        created: unix_time(),
        model: app.model.name().into(),
        prompt_tokens,
    };
    if request.sampling.stream == Some(true) {
        return Ok(job.stream());
    }
    job.whole().await
}

fn prompts(app: &Shared, prompt: &PromptField, special: bool) -> Result<Vec<Vec<u32>>, ApiError> {
    let encode = |text: &String| {
        app.model
            .tokenizer
            .encode(text, special)
            .map_err(|why| ApiError::param("prompt", why.to_string()))
    };
    match prompt {
        PromptField::Text(text) => Ok(vec![encode(text)?]),
        PromptField::Ids(ids) => Ok(vec![ids.clone()]),
        PromptField::Texts(texts) => texts.iter().map(encode).collect(),
        PromptField::IdLists(lists) => Ok(lists.clone()),
    }
}

struct Job {
    answers: Answers,
    id: String,
    created: u64,
    model: String,
    prompt_tokens: usize,
}

impl Job {
    fn completion(&self, choices: Vec<CompletionChoice>, usage: Option<Usage>) -> Completion {
        Completion {
            id: self.id.clone(),
            object: "text_completion",
            created: self.created,
            model: self.model.clone(),
            choices,
            usage,
        }
    }

    async fn whole(mut self) -> Result<Response, ApiError> {
        let pieces = self.answers.all().await?;
        let cached =
            (0..pieces.len()).filter_map(|at| self.answers.times(at)).map(|t| t.cached).sum();
        let completion = pieces.iter().map(|piece| piece.tokens.len()).sum();
        let choices = pieces.into_iter().enumerate().map(|(at, piece)| choice(at, piece)).collect();
        let usage = Usage::new(self.prompt_tokens, cached, completion);
        Ok(Json(self.completion(choices, Some(usage))).into_response())
    }

    fn stream(self) -> Response {
        sse::response(stream::unfold(Some(self), |job| async move {
            let mut job = job?;
            match job.answers.next().await {
                Ok(Some((at, piece))) => {
                    let event = match failure(&piece) {
                        Ok(()) => sse::event(&job.completion(vec![choice(at, piece)], None)),
                        Err(error) => sse::event(&error.body()),
                    };
                    Some((event, Some(job)))
                }
                Ok(None) => Some((sse::DONE, None)),
                Err(error) => Some((sse::event(&error.body()), None::<Job>)),
            }
        }))
    }
}

fn choice(index: usize, piece: Piece) -> CompletionChoice {
    CompletionChoice {
        index,
        text: piece.text,
        logprobs: None,
        finish_reason: piece.end.as_ref().map(|end| finish_reason(end.finish)),
        stop_reason: None,
        token_ids: None,
        prompt_token_ids: None,
    }
}
