//! `POST /v1/chat/completions`: a conversation to go on with.
//!
//! ```text
//! ask      the request -> prompt, plan, and how answers are read
//! reader   an answer's text -> thoughts, words, calls
//! whole    answers as one object
//! stream   answers as events
//! ```

mod ask;
mod logprobs;
mod reader;
mod stream;
mod whole;

use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use l5_scheduler::AnswerEnd;
use serde_json::Value;

use self::ask::{Asked, ask};
use self::reader::Reader;
use super::known_model;
use crate::server::answers::{Answers, finish_reason, stop_reason};
use crate::server::app::Shared;
use crate::server::error::ApiError;
use crate::server::json::Body;
use crate::server::middleware::RequestName;
use crate::server::middleware::key::Tenant;
use crate::server::model::unix_time;
use crate::server::openapi::WorkTroubles;
use crate::server::protocol::chat::{ChatCompletion, ChatRequest};
use crate::server::protocol::common::Usage;
use crate::server::told;

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
    name: RequestName,
    tenant: Tenant,
    Body(request, held): Body<ChatRequest>,
) -> Result<Response, ApiError> {
    known_model(&app, request.own.model.as_deref())?;
    let sampling = &request.sampling;
    let streams = sampling.stream == Some(true);
    let options = sampling.stream_options.unwrap_or_default();
    let counts = options.include_usage == Some(true);
    let counts_always = counts && options.continuous_usage_stats == Some(true);
    let token_ids = sampling.return_token_ids == Some(true);
    let Asked { mut plan, prompt, reader, calls_end } = ask(&app, tenant, request).await?;
    let prompt_tokens = prompt.len();
    let logprobs = plan.template.params.logprobs.is_some();
    let kept = if token_ids { prompt.clone() } else { Vec::new() };
    let requests = vec![plan.for_prompt(prompt)];
    // From here on the engine has what there was to say.
    plan.template.guide = None;
    drop(held);
    let answers = Answers::submit(&app, requests, plan.samples).await?;
    let chat = Chat {
        app,
        answers,
        id: format!("chatcmpl-{}", name.0),
        created: unix_time(),
        prompt_tokens,
        prompt: kept,
        reader,
        calls_end,
        logprobs,
        token_ids,
        counts,
        counts_always,
    };
    if streams { stream::stream(chat).await } else { whole::whole(chat).await }
}

/// A chat on its way.
struct Chat {
    app: Shared,
    answers: Answers,
    id: String,
    created: u64,
    prompt_tokens: usize,
    /// The prompt, if it is to be told.
    prompt: Vec<u32>,
    /// Reads an answer, from its beginning.
    reader: Reader,
    calls_end: bool,
    logprobs: bool,
    token_ids: bool,
    /// Whether events end with one that counts tokens, and whether every event counts them.
    counts: bool,
    counts_always: bool,
}

impl Chat {
    /// The one prompt is counted once, however many answers it has.
    fn usage(&self, completion: usize) -> Usage {
        Usage::new(self.prompt_tokens, self.answers.cached(), completion)
    }

    fn headers(&self) -> HeaderMap {
        told::headers(&self.app, &self.answers)
    }

    /// How an answer ended, and what stopped it.
    fn end(
        &self,
        reader: &Reader,
        end: &AnswerEnd,
        streaming: bool,
    ) -> (&'static str, Option<Value>) {
        if reader.looks_for_calls() {
            self.app.metrics.tool_parser(streaming, reader.called());
        }
        let why = match finish_reason(end.finish) {
            "stop" if self.calls_end && reader.called() => "tool_calls",
            why => why,
        };
        (why, stop_reason(end))
    }
}
