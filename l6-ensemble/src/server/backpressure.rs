//! Who is taken, who is told to come back, and when.

use std::sync::Arc;

use l4_sampler::philox::fresh_seed;
use l5_scheduler::{Answer, EngineRequest, Load, SubmitError};

use super::app::App;
use super::error::ApiError;

/// OpenAI's clients wait as long as `Retry-After` says only up to this many seconds.
const LONGEST_WAIT: f64 = 120.0;

/// In how many seconds it is worth coming back: when between half and all of the work that is there will be done, at the
/// pace of the last steps. Clients that are told the same moment come at the same moment, so each is told another:
/// `chance` is from 0 to 1.
pub fn retry_after(load: &Load, chance: f64) -> u32 {
    let seconds = (load.seconds.unwrap_or(1.0) * (0.5 + 0.5 * chance)).ceil();
    // Whole and small; what is no number is 1.
    if seconds >= 1.0 { seconds.min(LONGEST_WAIT) as u32 } else { 1 }
}

/// Hand requests to the engine, all or none. A guide is compiled here, on a thread that may take its time.
///
/// # Errors
/// [`ApiError`]: 400 for what cannot be meant or can never fit, 429 with `Retry-After` when enough others wait, 503 while
/// draining, 500 without an engine.
pub async fn submit(app: &Arc<App>, requests: Vec<EngineRequest>) -> Result<Vec<Answer>, ApiError> {
    let answers = requests.len();
    let prompt_tokens = requests.iter().map(|request| request.prompt.len()).sum();
    if let Some(most) = app.options.limits.queued_tokens {
        room_for(app, prompt_tokens, most)?;
    }
    let slow = requests.iter().any(|request| request.guide.is_some());
    let submitted = if slow {
        let engine = app.engine.clone();
        let submitted = tokio::task::spawn_blocking(move || engine.submit_all(requests)).await;
        submitted.map_err(|why| ApiError::internal(why.to_string()))?
    } else {
        app.engine.submit_all(requests)
    };
    submitted.map_err(|why| match why {
        // It would be told to come back for ever.
        SubmitError::Full { waiting } if answers > waiting => {
            let message = format!(
                "n: {answers} answers are asked for, and at most {waiting} requests may wait: ask for fewer at once"
            );
            ApiError::param("n", message)
        }
        SubmitError::Full { .. } => {
            app.metrics.rejected("max_num_queued_reqs");
            busy(app, why.to_string())
        }
        why => why.into(),
    })
}

/// Whether prompts of so many tokens may wait beside those that do.
fn room_for(app: &App, tokens: usize, most: usize) -> Result<(), ApiError> {
    if tokens > most {
        let message = format!(
            "the prompt has {tokens} tokens, and no more than {most} may wait here: send a shorter one"
        );
        return Err(ApiError::invalid(message).with_code("prompt_too_long"));
    }
    let waiting = app.engine.load().queued_tokens;
    if waiting.saturating_add(tokens) <= most {
        return Ok(());
    }
    app.metrics.rejected("max_num_queued_tokens");
    let message = format!(
        "prompts of {waiting} tokens wait already, {tokens} more would be above {most}: try again when some of them are done"
    );
    Err(busy(app, message))
}

fn busy(app: &App, message: String) -> ApiError {
    let chance = f64::from((fresh_seed() >> 32) as u32) / f64::from(u32::MAX);
    let seconds = retry_after(&app.engine.load(), chance);
    ApiError::busy(message, seconds).with_code("queue_full")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_must_wait_is_told_a_time_that_clients_believe() {
        let after = |seconds, chance| retry_after(&Load { seconds, ..Load::default() }, chance);
        assert_eq!(after(None, 1.0), 1);
        assert_eq!(after(Some(0.01), 0.0), 1);
        assert_eq!((after(Some(10.0), 0.0), after(Some(10.0), 1.0)), (5, 10));
        assert_eq!(after(Some(1e9), 0.5), 120);
        assert_eq!((after(Some(f64::NAN), 0.5), after(Some(f64::INFINITY), 0.5)), (1, 120));
    }
}
