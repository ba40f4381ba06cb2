//! `POST /v1/chat/completions`.
//!
//! ```text
//! prepare  the request -> prompt, plan, and a parser of output
//! format   output events -> deltas and messages
//! whole    choices as one object
//! stream   choices as chunks
//! ```

mod format;
mod logprobs;
mod prepare;
mod stream;
mod whole;

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use l4_sampler::output::FinishReason;
use l4_sampler::stop::StopReason;
use serde_json::Value;

use self::prepare::{PreparedChat, prepare};
use crate::choices::{self, Choices};
use crate::error::ApiError;
use crate::json::Body;
use crate::lanes::Lanes;
use crate::metrics::LaneMetrics;
use crate::middleware::RequestContext;
use crate::middleware::key::Tenant;
use crate::model::{ServedModel, unix_time};
use crate::openapi::SubmitErrors;
use crate::protocol::chat::{ChatCompletion, ChatRequest};
use crate::response_headers;
use crate::responses::{ResponseStreams, finish_reason, stop_reason};
use crate::routing::parts_of_chat;
use crate::verdicts::CheckedResponse;

/// Creates the next message of a conversation.
#[utoipa::path(post, path = "/v1/chat/completions", request_body = ChatRequest, security((), ("key" = [])), responses(
    (status = 200, content(
        (ChatCompletion = "application/json"),
        (String = "text/event-stream"),
    ), description = "The chat completion or, with `stream`, server-sent events: each is `data: ` and a ChatChunk, \
        the last is `data: [DONE]`"),
    SubmitErrors,
))]
pub async fn create(
    State(lanes): State<Lanes>,
    context: RequestContext,
    tenant: Tenant,
    Body(request, memory): Body<ChatRequest>,
) -> Result<Response, ApiError> {
    let routed = lanes
        .route(request.own.model.as_deref(), &request.routing, || parts_of_chat(&request.own))?;
    context.route(&lanes, &routed);
    let served = lanes[routed.lane].clone();
    let generation = &served.generation;
    let model = generation.model.clone();
    let sampling = &request.sampling;
    let streams = sampling.stream == Some(true);
    let options = sampling.stream_options.unwrap_or_default();
    let include_usage = options.include_usage == Some(true);
    let continuous_usage = include_usage && options.continuous_usage_stats == Some(true);
    let token_ids = sampling.return_token_ids == Some(true);
    let PreparedChat { mut plan, prompt, parser, calls_end } =
        prepare(generation, tenant, request).await?;
    let prompt_tokens = prompt.len();
    let parses_tools = parser.parses_tools();
    let logprobs = plan.template.params.logprobs.is_some();
    let returned_prompt = if token_ids { prompt.clone() } else { Vec::new() };
    let requests = vec![plan.for_prompt(prompt)];
    // The engine has these from here on.
    plan.template.guide = None;
    drop(memory);
    let id = format!("chatcmpl-{}", context.id().0);
    let checked = CheckedResponse::begin(&lanes, routed.lane, &context.id().0);
    let responses =
        ResponseStreams::submit(&generation.admission, context, requests, plan.samples).await?;
    let parsers = vec![parser; responses.len()];
    let mut choices = Choices::new(responses, parsers, prompt_tokens).checked(checked);
    let chat = Chat {
        model: model.clone(),
        metrics: generation.admission.metrics().clone(),
        id,
        created: unix_time(),
        prompt: returned_prompt,
        parses_tools,
        calls_end,
        logprobs,
        token_ids,
        include_usage,
        continuous_usage,
    };
    if streams {
        choices.begun().await?;
        let head = response_headers::headers(&served, &routed, choices.responses());
        let mut response = choices::stream(choices, stream::Chunks::new(chat));
        response.headers_mut().extend(head);
        return Ok(response);
    }
    let outputs = choices.all().await?;
    let completion = whole::completion(chat, outputs, choices.usage());
    Ok((response_headers::headers(&served, &routed, choices.responses()), Json(completion))
        .into_response())
}

/// Fields of the response beside its choices.
struct Chat {
    model: Arc<ServedModel>,
    metrics: Arc<LaneMetrics>,
    id: String,
    created: u64,
    /// Tokens of the prompt, with `return_token_ids`.
    prompt: Vec<u32>,
    /// Whether output is searched for tool calls.
    parses_tools: bool,
    /// Whether a tool call ends a choice with `tool_calls`.
    calls_end: bool,
    logprobs: bool,
    token_ids: bool,
    /// Whether a stream reports usage at its end, and whether it does so with every chunk.
    include_usage: bool,
    continuous_usage: bool,
}

impl Chat {
    /// OpenAI's finish_reason of a choice that made `calls` tool calls, and vLLM's stop_reason.
    fn end(
        &self,
        finish: FinishReason,
        stop: Option<StopReason>,
        calls: usize,
        streaming: bool,
    ) -> (&'static str, Option<Value>) {
        if self.parses_tools {
            self.metrics.tool_parser(streaming, calls > 0);
        }
        let why = match finish_reason(finish) {
            "stop" if self.calls_end && calls > 0 => "tool_calls",
            why => why,
        };
        (why, stop_reason(finish, stop.as_ref()))
    }
}
