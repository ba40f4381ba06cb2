//! Who is taken, who is told to come back, and when.

use std::sync::Arc;

use l5_scheduler::{Answer, EngineRequest, Load, SubmitError};

use super::app::App;
use super::error::ApiError;

/// OpenAI's clients wait as long as `Retry-After` says only up to this many seconds.
const LONGEST_WAIT: f64 = 120.0;

/// In how many seconds a place in the queue will be free: the work that is there, at the pace of the last steps.
pub fn retry_after(load: &Load) -> u32 {
    let seconds = load.seconds.unwrap_or(1.0);
    seconds.ceil().clamp(1.0, LONGEST_WAIT) as u32
}

/// Hand requests to the engine, all or none. A guide is compiled here, on a thread that may take its time.
///
/// # Errors
/// [`ApiError`]: 400 for what cannot be meant or can never fit, 429 with `Retry-After` when enough others wait, 503 while
/// draining, 500 without an engine.
pub async fn submit(app: &Arc<App>, requests: Vec<EngineRequest>) -> Result<Vec<Answer>, ApiError> {
    let slow = requests.iter().any(|request| request.guide.is_some());
    let answers = if slow {
        let engine = app.engine.clone();
        let submitted = tokio::task::spawn_blocking(move || engine.submit_all(requests)).await;
        submitted.map_err(|why| ApiError::internal(why.to_string()))?
    } else {
        app.engine.submit_all(requests)
    };
    answers.map_err(|why| match why {
        SubmitError::Full { .. } => {
            let load = app.engine.load();
            ApiError::busy(why.to_string(), retry_after(&load)).with_code("queue_full")
        }
        why => why.into(),
    })
}
