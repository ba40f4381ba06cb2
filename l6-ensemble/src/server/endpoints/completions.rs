//! `POST /v1/completions`: a text to continue.
//!
//! One request may have several prompts, and want several answers to each: choice `p * n + i` is answer `i` to prompt `p`.

mod logprobs;
mod prompts;
mod stream;
mod telling;

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use l5_scheduler::Piece;

use self::prompts::Prompt;
use self::stream::Streaming;
use self::telling::Telling;
use super::known_model;
use crate::server::answers::Answers;
use crate::server::app::{App, Shared};
use crate::server::error::ApiError;
use crate::server::json::Body;
use crate::server::middleware::RequestName;
use crate::server::middleware::key::Tenant;
use crate::server::openapi::WorkTroubles;
use crate::server::protocol::common::{Sampling, Usage};
use crate::server::protocol::completions::{Completion, CompletionFields, CompletionRequest};
use crate::server::request::{Plan, plan};
use crate::server::told;

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
    name: RequestName,
    tenant: Tenant,
    Body(request, held): Body<CompletionRequest>,
) -> Result<Response, ApiError> {
    let CompletionRequest { mut own, sampling } = request;
    known_model(&app, own.model.as_deref())?;
    refuse(&app, &own)?;
    let mut plan = plan(&app, tenant, &sampling, Some(max_tokens(&own)), own.logprobs)?;
    plan.template.continues = true;
    best_of(&mut plan, &sampling)?;
    let prompts = prompts::read(&app, &mut own, &plan).await?;
    let requests = prompts.iter().map(|prompt| plan.for_prompt(prompt.tokens.clone())).collect();
    let telling = Telling::new(&app, &name, &own, &sampling);
    let streams = sampling.stream == Some(true);
    let samples = plan.samples;
    // From here on the engine has what there was to say.
    plan.template.guide = None;
    drop(sampling);
    drop(held);
    let mut answers = Answers::submit(&app, requests, samples).await?;
    if streams {
        answers.begun().await?;
        let head = told::headers(&app, &answers);
        let mut response = Streaming::new(app, telling, prompts, plan.n, answers).response();
        response.headers_mut().extend(head);
        return Ok(response);
    }
    let pieces = answers.all().await?;
    let usage = usage(&prompts, &answers, pieces.iter().map(|piece| piece.tokens.len()).sum());
    let chosen = if plan.samples > plan.n { best(pieces, &plan) } else { pieces };
    let mut choices = Vec::new();
    for (index, piece) in chosen.into_iter().enumerate() {
        let prompt = prompts.get(index / plan.n as usize);
        choices.push(telling.whole(&app, index, prompt, piece));
    }
    let completion = telling.completion(choices, Some(Some(usage)));
    Ok((told::headers(&app, &answers), Json(completion)).into_response())
}

fn max_tokens(own: &CompletionFields) -> usize {
    own.max_tokens.unwrap_or(DEFAULT_MAX_TOKENS)
}

/// What completions cannot do here.
fn refuse(app: &App, own: &CompletionFields) -> Result<(), ApiError> {
    if own.suffix.as_ref().is_some_and(|text| !text.is_empty()) {
        let message = "suffix: this server only continues texts; leave it out";
        return Err(ApiError::param("suffix", message));
    }
    let most = app.options.limits.logprobs;
    match own.logprobs {
        Some(top) if top > most => {
            let message = format!("logprobs: {top} should be from 0 to {most}");
            Err(ApiError::param("logprobs", message))
        }
        Some(_) if own.echo == Some(true) => {
            let message = "logprobs: there are no log probabilities of prompts here; leave out echo or logprobs";
            Err(ApiError::param("logprobs", message))
        }
        _ => Ok(()),
    }
}

/// Ask for more answers than the client gets, and for what ranks them.
fn best_of(plan: &mut Plan, sampling: &Sampling) -> Result<(), ApiError> {
    let Some(samples) = sampling.best_of else { return Ok(()) };
    let n = plan.n;
    if samples < n {
        let message = format!("best_of: {samples} should be at least n, which is {n}");
        return Err(ApiError::param("best_of", message));
    }
    if samples > n {
        if sampling.stream == Some(true) {
            let message =
                "best_of: which answers are best is known at their end, so they cannot be streamed";
            return Err(ApiError::param("best_of", message));
        }
        Arc::make_mut(&mut plan.template.params).logprobs.get_or_insert_default();
    }
    plan.samples = samples;
    Ok(())
}

/// The best `n` answers to each prompt, the best first: by the mean log probability of their tokens.
fn best(pieces: Vec<Piece>, plan: &Plan) -> Vec<Piece> {
    let mean = |piece: &Piece| {
        let sum: f64 = piece.logprobs.iter().map(|about| f64::from(about.logprob)).sum();
        sum / piece.logprobs.len().max(1) as f64
    };
    let mut pieces = pieces.into_iter();
    let mut best = Vec::new();
    loop {
        let mut group: Vec<_> = pieces.by_ref().take(plan.samples as usize).collect();
        if group.is_empty() {
            return best;
        }
        group.sort_by(|a, b| mean(b).total_cmp(&mean(a)));
        best.extend(group.into_iter().take(plan.n as usize));
    }
}

/// Tokens of a request, counted: those of every prompt once, and of all answers.
fn usage(prompts: &[Prompt], answers: &Answers, completion: usize) -> Usage {
    let prompt = prompts.iter().map(|prompt| prompt.tokens.len()).sum();
    Usage::new(prompt, answers.cached(), completion)
}
