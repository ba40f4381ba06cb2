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
use l5_scheduler::EngineRequest;
use serde_json::Value;

use self::prepare::{PreparedChat, estimated_bytes, prepare};
use crate::choices::{self, Choices};
use crate::dispatch::{Dispatch, RequestFacts};
use crate::error::ApiError;
use crate::json::Body;
use crate::json::parsed_size::MemoryPermit;
use crate::lanes::{Lanes, ServedLane};
use crate::metrics::LaneMetrics;
use crate::middleware::RequestContext;
use crate::middleware::key::Tenant;
use crate::model::{ServedModel, unix_time};
use crate::openapi::SubmitErrors;
use crate::protocol::chat::{ChatCompletion, ChatRequest};
use crate::request::Generation;
use crate::response_headers;
use crate::responses::{ResponseStreams, finish_reason, stop_reason};
use crate::routing::parts_of_chat;
use crate::shadows::{self, MAX_KEPT_BYTES};

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
    let mut dispatch = Dispatch::new(&lanes, &context, routed, &facts(&request));
    let kept = dispatch.keeps_request().then(|| request.clone());
    // The memory is that of the request: given back when it is tokenized or, if it is kept, when it is admitted.
    let (memory, kept_memory) =
        if kept.is_none() { (Some(memory), None) } else { (None, Some(memory)) };
    let first = &lanes[dispatch.lane()];
    let mut begun = begin(first, context.clone(), tenant, request, memory).await;
    if let Err(refused) = &begun
        && let Some((lane, request)) = dispatch.spill_lane(refused).zip(kept.clone())
        && let Ok(spilled) = begin(&lanes[lane], context.clone(), tenant, request, None).await
    {
        dispatch.spill(lane, refused);
        begun = Ok(spilled);
    }
    drop(kept_memory);
    let mut dispatched = dispatch.end(begun.as_ref().err());
    let (choices, chat, streams) = begun?;
    let grant = dispatched.grant_shadow(&lanes, &context);
    let shadow = grant.zip(kept).map(|(grant, request)| {
        let generation = lanes[grant.lane].generation.clone();
        (grant, prepare_shadow(generation, tenant, request))
    });
    let primary = shadows::observe(&lanes, &dispatched, &context.id().0, shadow);
    let mut choices = choices.observed(primary);
    let (served, routed) = (&lanes[dispatched.routed.lane], &dispatched.routed);
    if streams {
        choices.begun().await?;
        let head = response_headers::headers(served, routed, choices.responses());
        let mut response = choices::stream(choices, stream::Chunks::new(chat));
        response.headers_mut().extend(head);
        return Ok(response);
    }
    let outputs = choices.all().await?;
    let completion = whole::completion(chat, outputs, choices.usage());
    Ok((response_headers::headers(served, routed, choices.responses()), Json(completion))
        .into_response())
}

/// What the shadow of a request depends on.
fn facts(request: &ChatRequest) -> RequestFacts {
    let ChatRequest { own, sampling, routing } = request;
    RequestFacts {
        high_stakes: routing.high_stakes == Some(true),
        tools: own.tools.as_ref().is_some_and(|tools| !tools.is_empty()),
        choices: sampling.n.unwrap_or(1).max(sampling.best_of.unwrap_or(1)) as usize,
        guided: sampling.is_guided(),
        may_be_kept: estimated_bytes(own) <= MAX_KEPT_BYTES,
    }
}

/// Prepares a request for a lane and submits it. Returns its choices, the fields of its response, and whether it is
/// streamed.
async fn begin(
    served: &ServedLane,
    context: RequestContext,
    tenant: Tenant,
    request: ChatRequest,
    memory: Option<MemoryPermit>,
) -> Result<(Choices, Chat, bool), ApiError> {
    let generation = &served.generation;
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
    let chat = Chat {
        model: generation.model.clone(),
        metrics: generation.admission.metrics().clone(),
        id: format!("chatcmpl-{}", context.id().0),
        created: unix_time(),
        prompt: returned_prompt,
        parses_tools,
        calls_end,
        logprobs,
        token_ids,
        include_usage,
        continuous_usage,
    };
    let responses =
        ResponseStreams::submit(&generation.admission, context, requests, plan.samples).await?;
    let parsers = vec![parser; responses.len()];
    Ok((Choices::new(responses, parsers, prompt_tokens), chat, streams))
}

/// The request as its shadow's lane gets it.
async fn prepare_shadow(
    generation: Generation,
    tenant: Tenant,
    mut request: ChatRequest,
) -> Result<EngineRequest, ApiError> {
    (request.own.logprobs, request.own.top_logprobs) = (None, None);
    let PreparedChat { plan, prompt, .. } = prepare(&generation, tenant, request).await?;
    Ok(plan.for_prompt(prompt))
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
