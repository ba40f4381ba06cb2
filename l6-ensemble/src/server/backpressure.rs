//! Which requests are taken, which are told to come back, and when.

use std::sync::Arc;
use std::time::Duration;

use l4_sampler::guide::{CompiledGuide, GuideError, GuideSpec};
use l4_sampler::philox::fresh_seed;
use l5_scheduler::engine::GuideSource;
use l5_scheduler::{Answer, EngineRequest, Load, SubmitError};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::app::App;
use super::background::{self, lower_priority};
use super::error::ApiError;

/// OpenAI's clients wait as long as `Retry-After` says only up to this many seconds.
const LONGEST_WAIT: f64 = 120.0;

/// Guides that are compiled at once.
const COMPILING_AT_ONCE: usize = 2;

/// Guides that are compiled or wait for that.
const MAX_WAITING_GUIDES: usize = 32;

/// How long a request may wait for its guide: behind those of others, and to be compiled.
const GUIDE_TIMEOUT: Duration = Duration::from_secs(20);

/// Maximum number of bytes of a guide's source, times the samples that follow it. Each running sample has a parser of its
/// own, of about eight times that size.
const MAX_GUIDE_BYTES: usize = 256 << 10;

/// Maximum number of bytes that the parsers of a request's choices take when they begin.
const MAX_PARSER_BYTES: usize = 32 << 20;

/// Seats for guides that are being compiled.
#[derive(Debug)]
pub struct Compiling {
    pub(super) seats: Arc<Semaphore>,
    waiting: Arc<Semaphore>,
}

impl Default for Compiling {
    fn default() -> Self {
        Self {
            seats: Arc::new(Semaphore::new(COMPILING_AT_ONCE)),
            waiting: Arc::new(Semaphore::new(MAX_WAITING_GUIDES)),
        }
    }
}

/// In how many seconds it is worth coming back: when between half and all of the work that is there will be done, at the
/// pace of the last steps. Clients that are told the same moment come at the same moment, so each is told another:
/// `chance` is from 0 to 1.
pub fn retry_after(load: &Load, chance: f64) -> u32 {
    let seconds = (load.seconds.unwrap_or(1.0) * (0.5 + 0.5 * chance)).ceil();
    // Whole and small; what is no number is 1.
    if seconds >= 1.0 { seconds.min(LONGEST_WAIT) as u32 } else { 1 }
}

/// Whether the queue has room for so many requests: asked before anything is made of them.
///
/// # Errors
/// As [`submit`].
pub fn room_for(app: &App, requests: usize) -> Result<(), ApiError> {
    app.engine.room_for(requests).map_err(|why| refused(app, requests, why))
}

/// Hand requests to the engine, `samples` of each, all or none. A guide is compiled first, in the background.
///
/// # Errors
/// [`ApiError`]: 400 for what is invalid or can never fit, 429 with `Retry-After` when the queue is full, 503 while
/// draining, 500 without an engine.
pub async fn submit(
    app: &Arc<App>,
    mut requests: Vec<EngineRequest>,
    samples: u32,
) -> Result<Vec<Answer>, ApiError> {
    let answers = requests.len().saturating_mul(samples as usize);
    room_for(app, answers)?;
    if let Some(most) = app.options.limits.queued_tokens {
        let tokens: usize = requests.iter().map(|request| request.prompt.len()).sum();
        room_for_tokens(app, tokens.saturating_mul(samples as usize), most)?;
    }
    // All prompts of a request have the same guide.
    let spec = requests.iter().find_map(|request| match &request.guide {
        Some(GuideSource::Spec(spec)) => Some(spec.clone()),
        _ => None,
    });
    if let Some(spec) = spec {
        let scope = requests.first().and_then(|request| request.cache_salt.clone());
        let guide = compile(app, spec, scope.unwrap_or_default(), answers).await?;
        for request in &mut requests {
            request.guide = Some(guide.clone());
        }
    }
    let submitted = app.engine.submit_samples(requests, samples);
    submitted.map_err(|why| refused(app, answers, why))
}

/// A guide that so many answers can follow.
async fn compile(
    app: &Arc<App>,
    spec: Arc<GuideSpec>,
    scope: String,
    answers: usize,
) -> Result<GuideSource, ApiError> {
    // Each holds its schema while it waits.
    let Ok(_waits) = app.compiling.waiting.clone().try_acquire_owned() else {
        return Err(busy(app, "too many guides wait to be compiled: try again later".to_owned()));
    };
    let known = background::run(app, 0, {
        let (spec, scope) = (spec.clone(), scope.clone());
        move |app| {
            // What passes is small, also while it waits.
            spec.check()?;
            Ok((spec.source_bytes(), app.engine.compiled_guide(&spec, &scope)))
        }
    });
    let known: Result<_, GuideError> = known.await?;
    let (bytes, known) = known.map_err(|why| refused(app, answers, why.into()))?;
    if answers > 1 && bytes.saturating_mul(answers) > MAX_GUIDE_BYTES {
        let message = format!(
            "n: {answers} choices cannot follow a guide of {bytes} bytes: bytes times choices may be {MAX_GUIDE_BYTES}. Ask for fewer choices, or for one in each request."
        );
        return Err(ApiError::param("n", message).with_code("guide_too_large"));
    }
    if let Some(guide) = known {
        return within_memory(guide, answers);
    }
    let compiled = timeout(GUIDE_TIMEOUT, async {
        // The semaphore is never closed. A client that goes while it waits here has its guide never compiled.
        let seat = app.compiling.seats.clone().acquire_owned().await;
        let engine = app.engine.clone();
        let compiled = tokio::task::spawn_blocking(move || {
            let _seat = seat;
            lower_priority();
            engine.compile_guide(&spec, &scope)
        });
        compiled.await.map_err(|why| ApiError::internal(why.to_string()))
    });
    match compiled.await {
        Ok(compiled) => {
            let guide = compiled?.map_err(|why| refused(app, answers, why))?;
            within_memory(guide, answers)
        }
        Err(_) => {
            let message = "the guide was not compiled in time, behind those of other requests: try again later";
            Err(busy(app, message.to_owned()))
        }
    }
}

/// A guide whose parsers, one for each of so many choices, take no more than the engine has for them.
fn within_memory(guide: CompiledGuide, answers: usize) -> Result<GuideSource, ApiError> {
    let bytes = guide.lexer_bytes();
    if answers <= 1 || bytes.saturating_mul(answers) <= MAX_PARSER_BYTES {
        return Ok(GuideSource::Compiled(guide));
    }
    let message = format!(
        "n: {answers} choices cannot follow this guide, whose parser takes {} KiB for each: ask for fewer choices, or simplify the guide",
        bytes >> 10
    );
    Err(ApiError::param("n", message).with_code("guide_too_large"))
}

/// What a client is told of an engine's refusal.
fn refused(app: &App, answers: usize, why: SubmitError) -> ApiError {
    match why {
        // It would be told to come back for ever.
        SubmitError::Full { most, .. } if answers > most => {
            let message = format!(
                "n: {answers} choices are asked for, and this server has room for {most} requests, running and waiting: ask for fewer at once"
            );
            ApiError::param("n", message)
        }
        SubmitError::Full { .. } => {
            app.metrics.rejected("max_num_queued_reqs");
            busy(app, why.to_string())
        }
        why => why.into(),
    }
}

/// Whether prompts of so many tokens may wait beside those that do.
fn room_for_tokens(app: &App, tokens: usize, most: usize) -> Result<(), ApiError> {
    if tokens > most {
        let message = format!(
            "the prompts have {tokens} tokens, counted once for each choice, and at most {most} may wait here: send less at once"
        );
        return Err(ApiError::invalid(message).with_code("prompt_too_long"));
    }
    let waiting = app.engine.load().queued_tokens;
    if waiting.saturating_add(tokens) <= most {
        return Ok(());
    }
    app.metrics.rejected("max_num_queued_tokens");
    let message = format!(
        "{waiting} prompt tokens are waiting, and {tokens} more would exceed the limit of {most}: try again later"
    );
    Err(busy(app, message))
}

/// From 0 to 1, another one each time.
fn chance() -> f64 {
    // Seeds have 53 bits.
    fresh_seed() as f64 / (1_u64 << 53) as f64
}

fn busy(app: &App, message: String) -> ApiError {
    let seconds = retry_after(&app.engine.load(), chance());
    ApiError::busy(message, seconds).with_code("queue_full")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_of_a_full_queue_are_told_different_times() {
        let chances: Vec<f64> = (0..1000).map(|_| chance()).collect();
        assert!(chances.iter().all(|chance| (0.0..=1.0).contains(chance)));
        let mean = chances.iter().sum::<f64>() / 1000.0;
        assert!((0.4..0.6).contains(&mean), "{mean}");
    }

    #[test]
    fn clients_of_a_full_queue_are_told_a_time_that_they_believe() {
        let after = |seconds, chance| retry_after(&Load { seconds, ..Load::default() }, chance);
        assert_eq!(after(None, 1.0), 1);
        assert_eq!(after(Some(0.01), 0.0), 1);
        assert_eq!((after(Some(10.0), 0.0), after(Some(10.0), 1.0)), (5, 10));
        assert_eq!(after(Some(1e9), 0.5), 120);
        assert_eq!((after(Some(f64::NAN), 0.5), after(Some(f64::INFINITY), 0.5)), (1, 120));
    }
}
