//! `POST /v1/completions`.
//!
//! A request may have several prompts and several choices for each: choice `p * n + i` is number `i` of prompt `p`.

mod format;
mod logprobs;
mod prompts;
mod stream;

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use l4_sampler::output::OutputParser;
use l5_scheduler::EngineRequest;
use l5_scheduler::generate::rank;
use l6_ensemble::router::Part;

use self::format::{Format, Progress};
use self::prompts::Prompt;
use self::stream::Objects;
use super::generating::{GenerationRequest, ResponseFormat, generate};
use crate::choices::{ChoiceDelta, Choices};
use crate::error::ApiError;
use crate::json::Body;
use crate::json::parsed_size::MemoryPermit;
use crate::lanes::{Lanes, ServedLane};
use crate::middleware::RequestContext;
use crate::middleware::key::Tenant;
use crate::openapi::SubmitErrors;
use crate::protocol::common::{Sampling, Usage};
use crate::protocol::completions::{Completion, CompletionFields, CompletionRequest, PromptField};
use crate::protocol::routing::Routing;
use crate::request::{Generation, Plan, RequestRules, plan};
use crate::responses::ResponseStreams;
use crate::routing::parts_of_prompt;

/// Default of `max_tokens`, as at OpenAI.
const DEFAULT_MAX_TOKENS: usize = 16;

/// Creates completions of prompts.
#[utoipa::path(post, path = "/v1/completions", request_body = CompletionRequest, security((), ("key" = [])), responses(
    (status = 200, content(
        (Completion = "application/json"),
        (String = "text/event-stream"),
    ), description = "The completion or, with `stream`, server-sent events: each is `data: ` and a Completion, the \
        last is `data: [DONE]`"),
    SubmitErrors,
))]
pub async fn create(
    State(lanes): State<Lanes>,
    context: RequestContext,
    tenant: Tenant,
    Body(request, memory): Body<CompletionRequest>,
) -> Result<Response, ApiError> {
    generate(lanes, context, tenant, request, memory).await
}

impl GenerationRequest for CompletionRequest {
    type Format = CompletionFormat;

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
        parts_of_prompt(&self.own.prompt)
    }

    fn has_tools(&self) -> bool {
        false
    }

    fn num_prompts(&self) -> usize {
        match &self.own.prompt {
            PromptField::Text(_) | PromptField::Ids(_) => 1,
            PromptField::Texts(texts) => texts.len(),
            PromptField::IdLists(lists) => lists.len(),
        }
    }

    fn text_bytes(&self) -> Option<usize> {
        match &self.own.prompt {
            PromptField::Text(text) => Some(text.len()),
            PromptField::Texts(texts) => Some(texts.iter().map(String::len).sum()),
            PromptField::Ids(_) | PromptField::IdLists(_) => None,
        }
    }

    async fn begin(
        self,
        served: &ServedLane,
        context: RequestContext,
        tenant: Tenant,
        memory: Option<MemoryPermit>,
    ) -> Result<(Choices, CompletionFormat), ApiError> {
        let generation = &served.generation;
        let (mut plan, prompts, own, sampling) = prepare(generation, tenant, self).await?;
        let requests =
            prompts.iter().map(|prompt| plan.for_prompt(prompt.tokens.clone())).collect();
        let format = Format::new(generation.model.clone(), context.id(), &own, &sampling);
        let samples = plan.samples;
        // The engine has these from here on.
        plan.template.guide = None;
        // Prompts are all that waits.
        drop((own, sampling, memory));
        let responses = ResponseStreams::submit(generation, context, requests, samples).await?;
        let choices = Choices::new(responses, parsers(&prompts, samples), prompt_tokens(&prompts));
        Ok((choices, CompletionFormat { plan, prompts, format }))
    }

    async fn prepare_shadow(
        mut self,
        generation: Generation,
        tenant: Tenant,
    ) -> Result<EngineRequest, ApiError> {
        (self.own.logprobs, self.own.echo) = (None, None);
        let (plan, prompts, ..) = prepare(&generation, tenant, self).await?;
        let prompt = prompts.into_iter().next().map(|prompt| prompt.tokens).unwrap_or_default();
        Ok(plan.for_prompt(prompt))
    }
}

/// Format of the completions of a request.
pub(super) struct CompletionFormat {
    plan: Plan,
    prompts: Vec<Prompt>,
    format: Format,
}

impl ResponseFormat for CompletionFormat {
    type Stream = Objects;
    type Whole = Completion;

    fn stream(self) -> Objects {
        Objects::new(self.format, self.prompts, self.plan.n)
    }

    fn whole(self, outputs: Vec<ChoiceDelta>, usage: Usage) -> Completion {
        let Self { plan, prompts, format } = self;
        let chosen = if plan.samples > plan.n { best(outputs, &plan) } else { outputs };
        let mut formatted = Vec::new();
        for (index, output) in chosen.into_iter().enumerate() {
            let prompt = prompts.get(index / plan.n as usize);
            let output = ChoiceDelta { index, ..output };
            formatted.push(format.choice(prompt, &mut Progress::default(), output).0);
        }
        format.completion(formatted, Some(Some(usage)))
    }
}

/// Checks a request, and tokenizes its prompts.
async fn prepare(
    generation: &Generation,
    tenant: Tenant,
    request: CompletionRequest,
) -> Result<(Plan, Vec<Prompt>, CompletionFields, Sampling), ApiError> {
    let CompletionRequest { mut own, sampling, routing } = request;
    let Generation { model, rules, .. } = generation;
    check(rules, &own)?;
    let (policy, most) = (generation.policy(&sampling, &routing), Some(max_tokens(&own)));
    let mut plan = plan(model, rules, tenant, &sampling, policy, most, own.logprobs)?;
    plan.template.deadline = routing.deadline();
    plan.template.continues = true;
    apply_best_of(&mut plan, &sampling)?;
    let prompts = prompts::read(generation, &mut own, &plan).await?;
    Ok((plan, prompts, own, sampling))
}

/// Parsers of all choices: completions are plain text.
fn parsers(prompts: &[Prompt], samples: u32) -> Vec<OutputParser> {
    let of = |prompt: &Prompt| vec![OutputParser::plain(prompt.tokens.len()); samples as usize];
    prompts.iter().flat_map(of).collect()
}

fn prompt_tokens(prompts: &[Prompt]) -> usize {
    prompts.iter().map(|prompt| prompt.tokens.len()).sum()
}

fn max_tokens(own: &CompletionFields) -> usize {
    own.max_tokens.unwrap_or(DEFAULT_MAX_TOKENS)
}

/// Rejects fields that completions do not support here.
fn check(rules: &RequestRules, own: &CompletionFields) -> Result<(), ApiError> {
    if own.suffix.as_ref().is_some_and(|text| !text.is_empty()) {
        let message = "`suffix` is not supported by this server. Remove it.";
        return Err(ApiError::param("suffix", message));
    }
    let most = rules.max_logprobs;
    match own.logprobs {
        Some(top) if top > most => {
            let message = format!("`logprobs` must be between 0 and {most}, got {top}");
            Err(ApiError::param("logprobs", message))
        }
        Some(_) if own.echo == Some(true) => {
            let message = "`logprobs` with `echo` is not supported: this server has no log probabilities of prompts. \
                Remove one of them.";
            Err(ApiError::param("logprobs", message))
        }
        _ => Ok(()),
    }
}

/// Requests more choices than the response has, and log probabilities to rank them by.
fn apply_best_of(plan: &mut Plan, sampling: &Sampling) -> Result<(), ApiError> {
    let Some(samples) = sampling.best_of else { return Ok(()) };
    let n = plan.n;
    if samples < n {
        let message = format!("`best_of` must be at least `n`, which is {n}, got {samples}");
        return Err(ApiError::param("best_of", message));
    }
    if samples > n {
        if sampling.stream == Some(true) {
            let message = "`best_of` greater than `n` cannot be streamed: the best choices are known at their end.";
            return Err(ApiError::param("best_of", message));
        }
        Arc::make_mut(&mut plan.template.params).logprobs.get_or_insert_default();
    }
    plan.samples = samples;
    Ok(())
}

/// The best `n` choices of each prompt, the best first: by the mean log probability of their tokens.
fn best(outputs: Vec<ChoiceDelta>, plan: &Plan) -> Vec<ChoiceDelta> {
    let mut outputs = outputs.into_iter();
    let mut best = Vec::new();
    loop {
        let mut group: Vec<_> = outputs.by_ref().take(plan.samples as usize).collect();
        if group.is_empty() {
            return best;
        }
        rank(&mut group, |output| Some(&output.logprobs));
        best.extend(group.into_iter().take(plan.n as usize));
    }
}
