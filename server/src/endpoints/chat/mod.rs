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

use axum::extract::State;
use axum::response::Response;
use l4_sampler::output::FinishReason;
use l4_sampler::stop::StopReason;
use l5_scheduler::EngineRequest;
use l6_ensemble::router::Part;
use serde_json::Value;

use self::prepare::{PreparedChat, estimated_bytes, prepare};
use super::generating::{GenerationRequest, ResponseFormat, generate};
use crate::choices::{ChoiceDelta, Choices};
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
use crate::protocol::common::{Sampling, Usage};
use crate::protocol::routing::Routing;
use crate::request::Generation;
use crate::responses::{ResponseStreams, finish_reason, stop_reason};
use crate::routing::parts_of_chat;

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
    generate(lanes, context, tenant, request, memory).await
}

impl GenerationRequest for ChatRequest {
    type Format = Chat;

    fn model(&self) -> Option<&str> {
        self.own.model.as_deref()
    }

    fn routing(&self) -> &Routing {
        &self.routing
    }

    fn sampling(&self) -> &Sampling {
        &self.sampling
    }

    fn parts(&self) -> Vec<Part<'_>> {
        parts_of_chat(&self.own)
    }

    fn has_tools(&self) -> bool {
        self.own.tools.as_ref().is_some_and(|tools| !tools.is_empty())
    }

    fn num_prompts(&self) -> usize {
        1
    }

    fn text_bytes(&self) -> Option<usize> {
        Some(estimated_bytes(&self.own))
    }

    async fn begin(
        self,
        served: &ServedLane,
        context: RequestContext,
        tenant: Tenant,
        memory: Option<MemoryPermit>,
    ) -> Result<(Choices, Chat), ApiError> {
        let generation = &served.generation;
        let options = self.sampling.stream_options.unwrap_or_default();
        let include_usage = options.include_usage == Some(true);
        let continuous_usage = include_usage && options.continuous_usage_stats == Some(true);
        let token_ids = self.sampling.return_token_ids == Some(true);
        let PreparedChat { mut plan, prompt, parser, calls_end } =
            prepare(generation, tenant, self).await?;
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
            ResponseStreams::submit(generation, context, requests, plan.samples).await?;
        let parsers = vec![parser; responses.len()];
        Ok((Choices::new(responses, parsers, prompt_tokens), chat))
    }

    async fn prepare_shadow(
        mut self,
        generation: Generation,
        tenant: Tenant,
    ) -> Result<EngineRequest, ApiError> {
        (self.own.logprobs, self.own.top_logprobs) = (None, None);
        let PreparedChat { plan, prompt, .. } = prepare(&generation, tenant, self).await?;
        Ok(plan.for_prompt(prompt))
    }
}

impl ResponseFormat for Chat {
    type Stream = stream::Chunks;
    type Whole = ChatCompletion;

    fn stream(self) -> stream::Chunks {
        stream::Chunks::new(self)
    }

    fn whole(self, outputs: Vec<ChoiceDelta>, usage: Usage) -> ChatCompletion {
        whole::completion(self, outputs, usage)
    }
}

/// Fields of the response beside its choices.
pub(super) struct Chat {
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
