//! Answers on their way from the engine to a task.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use l4_sampler::guide::GuideError;
use l4_sampler::stop::StopReason;
use l5_scheduler::engine::AnswerTimes;
use l5_scheduler::{Answer, AnswerEnd, EngineRequest, FinishReason, Piece};
use serde_json::Value;
use tokio::time::{Instant, sleep_until};

use super::app::App;
use super::backpressure;
use super::error::ApiError;
use super::metrics::Groups;
use super::middleware::Record;

/// The answers to one request: one for each prompt and sample. Dropped, those that have not ended are aborted.
pub struct Answers {
    /// `None` once its end was read.
    open: Vec<Option<Answer>>,
    /// When the parts of those that were read to their end came.
    times: Vec<Option<AnswerTimes>>,
    /// Which prompt each of them answers.
    prompts: Vec<usize>,
    /// What was looked at before anybody asked for it: see [`Answers::begun`].
    early: VecDeque<(usize, Piece)>,
    /// Whose turn it is to be looked at first, so that none waits for the others.
    turn: usize,
    deadline: Option<Instant>,
    /// What the access log tells of them.
    record: Option<Record>,
    /// What is counted of them together.
    groups: Groups,
}

impl Answers {
    /// Hand requests to the engine, `samples` of each, all or none.
    ///
    /// # Errors
    /// As [`backpressure::submit`].
    pub async fn submit(
        app: &Arc<App>,
        requests: Vec<EngineRequest>,
        samples: u32,
    ) -> Result<Self, ApiError> {
        let record = Record::current();
        let arrived = record.as_ref().map(|record| record.figures().began.into());
        let arrived = arrived.unwrap_or_else(Instant::now);
        let deadline = app.options.limits.request_timeout.map(|within| arrived + within);
        let prompt_tokens = requests.iter().map(|request| request.prompt.len()).sum();
        let prompts: Vec<usize> =
            (0..requests.len()).flat_map(|prompt| (0..samples).map(move |_| prompt)).collect();
        let numbers = requests.iter().flat_map(|_| 0..samples).collect();
        let answers = backpressure::submit(app, requests, samples).await?;
        let groups = app.metrics.groups(numbers);
        if let Some(record) = &record {
            record.submitted(prompt_tokens);
        }
        let times = vec![None; answers.len()];
        let open = answers.into_iter().map(Some).collect();
        Ok(Self { open, times, prompts, early: VecDeque::new(), turn: 0, deadline, record, groups })
    }

    /// Wait until there is something to tell: a response's head is sent when it is known that there will be a body, and
    /// tells how long the request waited.
    ///
    /// # Errors
    /// As [`Answers::next`], and what the first piece has for an error.
    pub async fn begun(&mut self) -> Result<(), ApiError> {
        if self.early.is_empty()
            && let Some((at, piece)) = self.next().await?
        {
            failure(&piece)?;
            self.early.push_back((at, piece));
        }
        Ok(())
    }

    /// The next piece of any of them, with its place among the requests; `None` when all have ended.
    ///
    /// # Errors
    /// [`ApiError`] when the time is up. All answers are then aborted.
    pub async fn next(&mut self) -> Result<Option<(usize, Piece)>, ApiError> {
        if let Some(early) = self.early.pop_front() {
            return Ok(Some(early));
        }
        let Some(deadline) = self.deadline else {
            return Ok(poll_fn(|cx| self.poll(cx)).await);
        };
        tokio::select! {
            biased;
            piece = poll_fn(|cx| self.poll(cx)) => Ok(piece),
            () = sleep_until(deadline) => {
                self.open.clear();
                Err(ApiError::timeout())
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
                    self.groups.came(at, piece.tokens.len());
                    if let Some(record) = &self.record {
                        record.piece(piece.tokens.len(), &answer.times(), piece.end.is_some());
                    }
                    if piece.end.is_some() {
                        self.times[at] = Some(answer.times());
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

    /// When an answer's parts came, as far as they have.
    pub fn times(&self, at: usize) -> Option<AnswerTimes> {
        let open = self.open.get(at).and_then(Option::as_ref).map(Answer::times);
        open.or_else(|| self.times.get(at).copied().flatten())
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.open.len()
    }

    /// Whether nothing was asked for.
    pub fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    /// How long the first of them waited that was scheduled; `None` while none was.
    pub fn queued(&self) -> Option<Duration> {
        let all = (0..self.len()).filter_map(|at| self.times(at));
        all.filter_map(|times| Some(times.scheduled? - times.submitted)).min()
    }

    /// Tokens of the prompts that were in the cache before this request. Of several answers to one prompt the first
    /// computes what the others find: what counts is who found least.
    pub fn cached(&self) -> usize {
        let mut least: Vec<Option<usize>> = Vec::new();
        for (at, prompt) in self.prompts.iter().enumerate() {
            least.resize(least.len().max(prompt + 1), None);
            let times = self.times(at).filter(|times| times.scheduled.is_some());
            if let (Some(times), Some(least)) = (times, least.get_mut(*prompt)) {
                *least = Some(least.map_or(times.cached, |least| least.min(times.cached)));
            }
        }
        least.into_iter().flatten().sum()
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
            if why.starts_with(GuideError::GAVE_UP) {
                // The request's own grammar takes more work at some step than is allowed.
                return Err(ApiError::invalid(why).with_code("guide_too_complex"));
            }
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

/// What exactly ended an answer, in vLLM's `stop_reason`: the stop string, or the stop token's id. Null for what needs no
/// more words. A pool without room for one token more is told here, since OpenAI has no word for it.
pub fn stop_reason(end: &AnswerEnd) -> Option<Value> {
    match (&end.stop, end.finish) {
        (_, FinishReason::KvExhausted) => Some(FinishReason::KvExhausted.as_str().into()),
        (Some(StopReason::Text(text)), _) => Some(text.as_str().into()),
        (Some(StopReason::Token(id)), _) => Some((*id).into()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use axum::http::StatusCode;

    use super::*;

    #[test]
    fn the_end_of_the_pool_is_a_length_with_a_reason() {
        let end = |finish, stop| AnswerEnd { finish, stop, error: None };
        let full = end(FinishReason::KvExhausted, None);
        assert_eq!(finish_reason(full.finish), "length");
        assert_eq!(stop_reason(&full), Some("kv_exhausted".into()));
        let token = end(FinishReason::Stop, Some(StopReason::Token(7)));
        assert_eq!(stop_reason(&token), Some(7.into()));
        let eos = end(FinishReason::Stop, Some(StopReason::Eos(7)));
        assert_eq!(stop_reason(&eos), None);
        assert_eq!(stop_reason(&end(FinishReason::Length, Some(StopReason::Length))), None);
    }

    #[test]
    fn an_answer_that_failed_is_an_error_with_the_reason() {
        let mut piece = Piece::default();
        assert_eq!(failure(&piece), Ok(()));
        let error = Some("out of luck".to_owned());
        piece.end = Some(AnswerEnd { finish: FinishReason::Failed, stop: None, error });
        let why = failure(&piece).unwrap_err();
        assert_eq!(
            (why.status, why.code),
            (StatusCode::INTERNAL_SERVER_ERROR, Some("engine_failed"))
        );
        assert!(why.message.contains("out of luck"));
        let gave_up = GuideError::TooComplex { why: "too many states".into() }.to_string();
        let error = Some(gave_up);
        piece.end = Some(AnswerEnd { finish: FinishReason::Failed, stop: None, error });
        let why = failure(&piece).unwrap_err();
        assert_eq!((why.status, why.code), (StatusCode::BAD_REQUEST, Some("guide_too_complex")));
        piece.end = Some(AnswerEnd { finish: FinishReason::Aborted, stop: None, error: None });
        assert_eq!(failure(&piece).unwrap_err().status, StatusCode::SERVICE_UNAVAILABLE);
    }
}
