//! The response streams of one HTTP request: output on its way from the engine to a task.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use l4_sampler::guide::GuideError;
use l4_sampler::stop::StopReason;
use l5_scheduler::engine::ResponseTimes;
use l5_scheduler::{EngineRequest, FinishReason, OutputChunk, RequestId, ResponseStream};
use l6_ensemble::ReplicaId;
use serde_json::Value;
use tokio::time::{Instant, sleep_until};

use super::backpressure::Submitted;
use super::error::ApiError;
use super::failover::FailoverPlan;
use super::metrics::{ChoiceMetrics, LaneMetrics};
use super::middleware::RequestContext;
use super::request::Generation;

/// Engine requests of one HTTP request: one for each prompt and sample. Those that have not ended are aborted when this
/// is dropped.
pub struct ResponseStreams {
    replica: ReplicaId,
    /// Stream of each engine request; `None` after its end was read.
    open: Vec<Option<ResponseStream>>,
    /// Times of each engine request whose end was read.
    times: Vec<Option<ResponseTimes>>,
    /// Index of the prompt of each engine request.
    prompts: Vec<usize>,
    /// Output that was read ahead: see [`ResponseStreams::begun`].
    early: VecDeque<(usize, OutputChunk)>,
    /// Index to poll first, so that none starves.
    turn: usize,
    deadline: Option<Instant>,
    /// Context of the HTTP request, for the access log.
    context: RequestContext,
    /// Metrics of the choices of each prompt.
    metrics: Option<ChoiceMetrics>,
    lane: Arc<LaneMetrics>,
    /// What to do with engine requests that the replica cannot serve.
    failover: Option<FailoverPlan>,
}

impl ResponseStreams {
    /// Submits requests, `samples` of each, all or none.
    ///
    /// # Errors
    /// As [`Admission::submit`](super::backpressure::Admission::submit).
    pub async fn submit(
        generation: &Generation,
        context: RequestContext,
        requests: Vec<EngineRequest>,
        samples: u32,
    ) -> Result<Self, ApiError> {
        let Generation { admission, adapter, .. } = generation;
        let arrived = Instant::from(context.arrived());
        let deadline = admission.request_timeout().map(|within| arrived + within);
        let prompt_tokens = requests.iter().map(|request| request.prompt.len()).sum();
        let prompts: Vec<usize> =
            (0..requests.len()).flat_map(|prompt| (0..samples).map(move |_| prompt)).collect();
        let numbers = requests.iter().flat_map(|_| 0..samples).collect();
        let submitted = admission.submit(requests, samples, adapter.as_ref(), context.arrived());
        let submitted = submitted.await?;
        let Submitted { replica, streams, failover } = submitted;
        let lane = admission.metrics().clone();
        let metrics = lane.begin_choices(replica, numbers);
        context.count_prompt_tokens(prompt_tokens, replica);
        let times = vec![None; streams.len()];
        let open = streams.into_iter().map(Some).collect();
        Ok(Self {
            replica,
            open,
            times,
            prompts,
            early: VecDeque::new(),
            turn: 0,
            deadline,
            context,
            metrics,
            lane,
            failover,
        })
    }

    /// Waits for the first output: a stream's head is sent when it is known that a body follows, and has the time that
    /// the request waited.
    ///
    /// # Errors
    /// As [`ResponseStreams::next`], and the error of the first output.
    pub async fn begun(&mut self) -> Result<(), ApiError> {
        if self.early.is_empty()
            && let Some((at, chunk)) = self.next().await?
        {
            failure(&chunk)?;
            self.early.push_back((at, chunk));
        }
        Ok(())
    }

    /// Next output of any engine request, with its index; `None` when all have ended.
    ///
    /// # Errors
    /// [`ApiError`] when the request timed out. All engine requests are then aborted.
    pub async fn next(&mut self) -> Result<Option<(usize, OutputChunk)>, ApiError> {
        if let Some(early) = self.early.pop_front() {
            return Ok(Some(early));
        }
        let Some(deadline) = self.deadline else {
            return Ok(poll_fn(|cx| self.poll(cx)).await);
        };
        tokio::select! {
            biased;
            chunk = poll_fn(|cx| self.poll(cx)) => Ok(chunk),
            () = sleep_until(deadline) => {
                self.open.clear();
                Err(ApiError::timeout())
            }
        }
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<(usize, OutputChunk)>> {
        let n = self.open.len();
        let mut pending = false;
        for step in 0..n {
            let at = (self.turn + step) % n;
            let polled = self.poll_one(at, cx);
            let Some(stream) = &mut self.open[at] else { continue };
            match polled {
                Poll::Ready(Some(chunk)) => {
                    self.turn = at + 1;
                    if let Some(metrics) = &mut self.metrics {
                        metrics.count(at, chunk.tokens.len());
                    }
                    let ended = chunk.end.is_some();
                    self.context.count_output(chunk.tokens.len(), &stream.times(), ended);
                    if chunk.end.is_some() {
                        self.times[at] = Some(stream.times());
                        self.open[at] = None;
                    }
                    return Poll::Ready(Some((at, chunk)));
                }
                Poll::Ready(None) => self.open[at] = None,
                Poll::Pending => pending = true,
            }
        }
        if pending { Poll::Pending } else { Poll::Ready(None) }
    }

    /// Ids of the engine requests whose ends were not read yet.
    pub fn ids(&self) -> impl Iterator<Item = RequestId> {
        self.open.iter().flatten().map(ResponseStream::id)
    }

    /// Polls one engine request. One that its replica could not serve may have moved to another one, which is polled in
    /// its place.
    fn poll_one(&mut self, at: usize, cx: &mut Context<'_>) -> Poll<Option<OutputChunk>> {
        loop {
            let Some(stream) = &mut self.open[at] else { return Poll::Ready(None) };
            let polled = stream.poll_recv(cx);
            let Poll::Ready(Some(chunk)) = &polled else { return polled };
            let moved = self.failover.as_mut().and_then(|plan| plan.next(at, chunk));
            let Some((replica, stream)) = moved else { return polled };
            self.open[at] = Some(stream);
            self.replica = replica;
            self.context.moved_to(replica);
            if let Some(choices) = &mut self.metrics {
                self.lane.move_choices(choices, replica);
            }
        }
    }

    /// Records that the response ends with an error, whose head has been sent.
    pub fn failed(&self, why: &ApiError) {
        why.code.into_iter().for_each(|code| self.context.failed(code));
    }

    /// Replica that serves the request.
    pub fn replica(&self) -> ReplicaId {
        self.replica
    }

    /// Whether the engine of that replica speculates.
    pub fn speculates(&self) -> bool {
        self.lane.speculates(self.replica)
    }

    /// Times of one engine request, as far as they are known.
    pub fn times(&self, at: usize) -> Option<ResponseTimes> {
        let open = self.open.get(at).and_then(Option::as_ref).map(ResponseStream::times);
        open.or_else(|| self.times.get(at).copied().flatten())
    }

    /// Number of engine requests.
    pub fn len(&self) -> usize {
        self.open.len()
    }

    /// Returns whether there are no engine requests.
    pub fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    /// Shortest time that one engine request waited for its first step; `None` before that.
    pub fn queued(&self) -> Option<Duration> {
        let all = (0..self.len()).filter_map(|at| self.times(at));
        all.filter_map(|times| Some(times.scheduled? - times.submitted)).min()
    }

    /// Number of prompt tokens that were cached before this request, in the pool or in a tier. Of several choices of one
    /// prompt the first computes the blocks that the others find, so the smallest number counts.
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

    /// Number of prompt tokens that were loaded from a tier. What one choice of a prompt has loaded is in the pool for the
    /// others, so their numbers add up.
    pub fn loaded(&self) -> usize {
        (0..self.len()).filter_map(|at| self.times(at)).map(|times| times.loaded).sum()
    }

    /// Waits for all engine requests, and returns their outputs in order.
    ///
    /// # Errors
    /// [`ApiError`] when the request timed out, or when an engine request failed.
    pub async fn all(&mut self) -> Result<Vec<OutputChunk>, ApiError> {
        let mut whole = vec![OutputChunk::default(); self.open.len()];
        while let Some((at, mut chunk)) = self.next().await? {
            let choice = &mut whole[at];
            choice.tokens.append(&mut chunk.tokens);
            choice.text.push_str(&chunk.text);
            choice.logprobs.append(&mut chunk.logprobs);
            choice.end = chunk.end.take();
        }
        whole.iter().try_for_each(failure)?;
        Ok(whole)
    }
}

/// Converts the end of a failed or aborted choice to an error.
///
/// # Errors
/// [`ApiError`] if the engine failed or was shut down.
pub fn failure(chunk: &OutputChunk) -> Result<(), ApiError> {
    let Some(end) = &chunk.end else { return Ok(()) };
    match end.finish {
        FinishReason::Failed => {
            if let Some(why) = &end.adapter_failure {
                return Err(super::adapters::failed(why));
            }
            let why = end.error.as_deref().unwrap_or("no reason given");
            if why.starts_with(GuideError::GAVE_UP) {
                // The request's own grammar takes more work at some step than is allowed.
                return Err(ApiError::invalid(why).with_code("guide_too_complex"));
            }
            if end.relay_failure.is_some() {
                // The client may send it again: another replica may serve it.
                return Err(super::error::unavailable(why, "remote_failed"));
            }
            Err(ApiError::internal(format!("The engine failed: {why}")).with_code("engine_failed"))
        }
        FinishReason::Aborted => {
            Err(super::error::unavailable("The server is shutting down.", "shut_down"))
        }
        FinishReason::Stop | FinishReason::Length | FinishReason::KvExhausted => Ok(()),
    }
}

/// OpenAI's `finish_reason`.
pub fn finish_reason(finish: FinishReason) -> &'static str {
    match finish {
        FinishReason::Stop => "stop",
        // OpenAI has no reason for an exhausted pool.
        FinishReason::Length | FinishReason::KvExhausted => "length",
        FinishReason::Aborted => "abort",
        FinishReason::Failed => "error",
    }
}

/// vLLM's `stop_reason`: the stop string, or the stop token's id. `kv_exhausted` is reported here, since OpenAI has no
/// finish_reason for it.
pub fn stop_reason(finish: FinishReason, stop: Option<&StopReason>) -> Option<Value> {
    match (stop, finish) {
        (_, FinishReason::KvExhausted) => Some(FinishReason::KvExhausted.as_str().into()),
        (Some(StopReason::Text(text)), _) => Some(text.as_str().into()),
        (Some(StopReason::Token(id)), _) => Some((*id).into()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use axum::http::StatusCode;
    use l5_scheduler::{AdapterFailure, OutputEnd, RelayFailure};

    use super::*;

    #[test]
    fn the_end_of_the_pool_is_a_length_with_a_reason() {
        assert_eq!(finish_reason(FinishReason::KvExhausted), "length");
        assert_eq!(stop_reason(FinishReason::KvExhausted, None), Some("kv_exhausted".into()));
        let stopped = |stop| stop_reason(FinishReason::Stop, Some(&stop));
        assert_eq!(stopped(StopReason::Token(7)), Some(7.into()));
        assert_eq!(stopped(StopReason::Text("end".into())), Some("end".into()));
        assert_eq!(stopped(StopReason::Eos(7)), None);
        assert_eq!(stop_reason(FinishReason::Length, Some(&StopReason::Length)), None);
    }

    #[test]
    fn a_failed_choice_is_an_error_with_the_reason() {
        let mut chunk = OutputChunk::default();
        assert_eq!(failure(&chunk), Ok(()));
        let error = Some("out of memory".to_owned());
        let end = |finish, error| OutputEnd { error, ..OutputEnd::of(finish) };
        chunk.end = Some(end(FinishReason::Failed, error.clone()));
        let why = failure(&chunk).unwrap_err();
        assert_eq!(
            (why.status, why.code),
            (StatusCode::INTERNAL_SERVER_ERROR, Some("engine_failed"))
        );
        assert!(why.message.contains("out of memory"));
        let relay_failure = Some(RelayFailure::Final);
        chunk.end = Some(OutputEnd { relay_failure, ..end(FinishReason::Failed, error) });
        let why = failure(&chunk).unwrap_err();
        assert_eq!(
            (why.status, why.code),
            (StatusCode::SERVICE_UNAVAILABLE, Some("remote_failed"))
        );
        let gave_up = GuideError::TooComplex { why: "too many states".into() }.to_string();
        let error = Some(gave_up);
        let adapter_failure = Some(AdapterFailure::NotFinite { name: "sql".into() });
        chunk.end = Some(OutputEnd { adapter_failure, ..end(FinishReason::Failed, error.clone()) });
        let why = failure(&chunk).unwrap_err();
        assert_eq!((why.status.as_u16(), why.code), (503, Some("adapter_unavailable")));
        assert!(why.message.contains("`sql`") && why.retry_after.is_none(), "{why:?}");
        chunk.end = Some(end(FinishReason::Failed, error));
        let why = failure(&chunk).unwrap_err();
        assert_eq!((why.status, why.code), (StatusCode::BAD_REQUEST, Some("guide_too_complex")));
        chunk.end = Some(end(FinishReason::Aborted, None));
        assert_eq!(failure(&chunk).unwrap_err().status, StatusCode::SERVICE_UNAVAILABLE);
    }
}
