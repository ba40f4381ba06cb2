//! Answers on their way from the engine to a task.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::http::StatusCode;
use l5_scheduler::engine::AnswerTimes;
use l5_scheduler::{Answer, EngineRequest, FinishReason, Piece};
use tokio::time::{Instant, sleep_until};

use super::app::App;
use super::backpressure;
use super::error::ApiError;

/// The answers to one request: one for each prompt and sample. Dropped, those that have not ended are aborted.
pub struct Answers {
    /// `None` once its end was read.
    open: Vec<Option<Answer>>,
    times: Vec<Option<AnswerTimes>>,
    /// Whose turn it is to be looked at first, so that none waits for the others.
    turn: usize,
    deadline: Option<Instant>,
}

impl Answers {
    /// Hand requests to the engine, all or none.
    ///
    /// # Errors
    /// As [`backpressure::submit`].
    pub async fn submit(app: &Arc<App>, requests: Vec<EngineRequest>) -> Result<Self, ApiError> {
        let deadline = app.options.limits.request_timeout.map(|within| Instant::now() + within);
        let answers = backpressure::submit(app, requests).await?;
        let times = vec![None; answers.len()];
        Ok(Self { open: answers.into_iter().map(Some).collect(), times, turn: 0, deadline })
    }

    /// The next piece of any of them, with its place among the requests; `None` when all have ended.
    ///
    /// # Errors
    /// [`ApiError`] when the time is up. All answers are then aborted.
    pub async fn next(&mut self) -> Result<Option<(usize, Piece)>, ApiError> {
        let Some(deadline) = self.deadline else {
            return Ok(poll_fn(|cx| self.poll(cx)).await);
        };
        tokio::select! {
            biased;
            piece = poll_fn(|cx| self.poll(cx)) => Ok(piece),
            () = sleep_until(deadline) => {
                self.open.clear();
                let message = "the request took longer than this server allows: ask for fewer tokens";
                let error = ApiError::new(StatusCode::GATEWAY_TIMEOUT, "timeout_error", message);
                Err(error.with_code("request_timeout"))
            }
        }
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<(usize, Piece)>> {
        let n = self.open.len();
        let mut pending = false;
        for step in 0..n {
            let at = (self.turn + step) % n;
            let Some(answer) = &mut self.open[at] else { continue };
            match answer.poll_recv(cx) {
                Poll::Ready(Some(piece)) => {
                    self.turn = at + 1;
                    self.times[at] = Some(answer.times());
                    if piece.end.is_some() {
                        self.open[at] = None;
                    }
                    return Poll::Ready(Some((at, piece)));
                }
                Poll::Ready(None) => self.open[at] = None,
                Poll::Pending => pending = true,
            }
        }
        if pending { Poll::Pending } else { Poll::Ready(None) }
    }

    /// When an answer's parts came, as of its last piece.
    pub fn times(&self, at: usize) -> Option<AnswerTimes> {
        self.times.get(at).copied().flatten()
    }

    /// Every answer whole, in the order of the requests.
    ///
    /// # Errors
    /// [`ApiError`] when the time is up, or when the engine could not go on with one of them.
    pub async fn all(&mut self) -> Result<Vec<Piece>, ApiError> {
        let mut whole = vec![Piece::default(); self.open.len()];
        while let Some((at, mut piece)) = self.next().await? {
            let answer = &mut whole[at];
            answer.tokens.append(&mut piece.tokens);
            answer.text.push_str(&piece.text);
            answer.logprobs.append(&mut piece.logprobs);
            answer.end = piece.end.take();
        }
        whole.iter().try_for_each(failure)?;
        Ok(whole)
    }
}

/// What a client is told of an answer that did not end well.
///
/// # Errors
/// [`ApiError`] if the engine could not go on, or was shut down over it.
pub fn failure(piece: &Piece) -> Result<(), ApiError> {
    let Some(end) = &piece.end else { return Ok(()) };
    match end.finish {
        FinishReason::Failed => {
            let why = end.error.as_deref().unwrap_or("the engine gave no reason");
            Err(ApiError::internal(format!("the engine could not go on: {why}"))
                .with_code("engine_failed"))
        }
        FinishReason::Aborted => {
            Err(super::error::unavailable("the server is shutting down", "shut_down"))
        }
        FinishReason::Stop | FinishReason::Length | FinishReason::KvExhausted => Ok(()),
    }
}

/// OpenAI's word for how an answer ended.
pub fn finish_reason(finish: FinishReason) -> &'static str {
    match finish {
        FinishReason::Stop => "stop",
        // The pool's end is as good a length as another: OpenAI has no word for it.
        FinishReason::Length | FinishReason::KvExhausted => "length",
        FinishReason::Aborted => "abort",
        FinishReason::Failed => "error",
    }
}
