//! The outbox of a request, where its output waits to be read.
//!
//! The engine puts in what a step gave, and goes on; it never waits for a reader. Unread output is joined, so that a
//! slow reader gets more at once instead of a longer queue, and an outbox never holds more than one response.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use l4_sampler::TokenLogprobs;

use super::ValidRequest;
use super::inbox::Inbox;
use super::load::{Deadline, Gauge};
use crate::request::ANSWER_ROOM;
use crate::runner::{OutputEnd, OutputSink, TokenDelta};
use crate::{FinishReason, RequestId};

/// Part of a response: the output since the last part was read.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OutputChunk {
    /// Output tokens.
    pub tokens: Vec<u32>,
    /// Their text, as far as it is certain.
    pub text: String,
    /// Log probabilities, one entry for each token, if requested.
    pub logprobs: Vec<TokenLogprobs>,
    /// How the response ended; in the last part only.
    pub end: Option<OutputEnd>,
}

impl OutputChunk {
    fn clear(&mut self) {
        self.tokens.clear();
        self.text.clear();
        self.logprobs.clear();
        self.end = None;
    }
}

/// Times of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResponseTimes {
    /// Time of submission, less the time that the request had waited before.
    pub submitted: Instant,
    /// Time of the first admission, up to which the request waited.
    pub scheduled: Option<Instant>,
    /// Time of the first output token.
    pub first: Option<Instant>,
    /// Time of the newest output.
    pub last: Option<Instant>,
    /// Number of prompt tokens that the first admission found, in the cache or outside the pool.
    pub cached: usize,
    /// Number of those that were loaded from outside the pool.
    pub loaded: usize,
}

/// Outbox of one request: the engine writes, one reader reads.
pub(super) struct Outbox {
    state: Mutex<State>,
    ready: Condvar,
    gauge: Arc<Gauge>,
}

struct State {
    /// Output that has not been read.
    unread: OutputChunk,
    /// Task to wake when there is output.
    waker: Option<Waker>,
    times: ResponseTimes,
    /// Whether log probabilities are requested.
    logprobs: bool,
    /// Whether the first admission has been recorded.
    admitted: bool,
    /// Part of the request that counts in the load: prompt tokens until the first output token, output tokens left, and
    /// the deadline until the end.
    prompt: usize,
    output_left: usize,
    deadline: Option<Deadline>,
    ended: bool,
    /// Whether the end was read.
    closed: bool,
}

impl Outbox {
    /// Creates the outbox of a request that is submitted now.
    pub(super) fn new(gauge: Arc<Gauge>, id: RequestId, valid: &ValidRequest) -> Arc<Self> {
        let (request, max_tokens) = (valid.request(), valid.max_tokens());
        let (prompt, now) = (request.prompt.len(), Instant::now());
        gauge.add(prompt, max_tokens);
        let deadline = request.deadline.map(|within| gauge.add_deadline(id, now, within));
        let times = ResponseTimes {
            submitted: valid.arrived(now),
            scheduled: None,
            first: None,
            last: None,
            cached: 0,
            loaded: 0,
        };
        let state = State {
            unread: OutputChunk::default(),
            logprobs: request.params.logprobs.is_some(),
            waker: None,
            times,
            admitted: false,
            prompt,
            output_left: max_tokens,
            deadline,
            ended: false,
            closed: false,
        };
        Arc::new(Self { state: Mutex::new(state), ready: Condvar::new(), gauge })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records the first admission, which hit `cached` tokens in the cache, and for which `loaded` tokens were loaded
    /// from outside the pool.
    pub(super) fn admitted(&self, cached: usize, loaded: usize) {
        let mut state = self.lock();
        if !std::mem::replace(&mut state.admitted, true) {
            (state.times.cached, state.times.loaded) = (cached + loaded, loaded);
            state.times.scheduled = Some(Instant::now());
            // Not before: a waiting request should take little memory.
            let room = state.output_left.min(ANSWER_ROOM);
            state.unread.tokens.reserve(room);
            // In most languages a token has fewer bytes of text; longer tokens grow the buffer.
            state.unread.text.reserve(8 * room);
            if state.logprobs {
                state.unread.logprobs.reserve(room);
            }
        }
    }

    fn push(&self, news: &TokenDelta<'_>) {
        let mut state = self.lock();
        if state.ended {
            return;
        }
        if !news.tokens.is_empty() {
            let now = Instant::now();
            state.times.first.get_or_insert(now);
            state.times.last = Some(now);
            let (prompt, came) = (std::mem::take(&mut state.prompt), news.tokens.len());
            let paid = came.min(state.output_left);
            state.output_left -= paid;
            self.gauge.sub(prompt, paid);
        }
        state.unread.tokens.extend_from_slice(news.tokens);
        state.unread.text.push_str(news.text);
        state.unread.logprobs.extend_from_slice(news.logprobs);
        self.wake(state);
    }

    /// Ends the response, unless it has ended.
    pub(super) fn end(&self, end: &OutputEnd) {
        let mut state = self.lock();
        if std::mem::replace(&mut state.ended, true) {
            return;
        }
        state.unread.end = Some(end.clone());
        state.times.last = Some(Instant::now());
        self.gauge.sub(state.prompt, state.output_left);
        if let Some(deadline) = state.deadline.take() {
            self.gauge.remove_deadline(deadline);
        }
        self.wake(state);
    }

    /// Ends the response with a reason that the executor did not report.
    pub(super) fn end_with(&self, finish: FinishReason, error: Option<String>) {
        self.end(&OutputEnd { error, ..OutputEnd::of(finish) });
    }

    fn wake(&self, mut state: MutexGuard<'_, State>) {
        let waker = state.waker.take();
        drop(state);
        self.ready.notify_one();
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// Receiver of the executor's output. If it is dropped before the end, the request has failed.
pub(super) struct Sink(pub Arc<Outbox>);

impl OutputSink for Sink {
    fn push(&mut self, news: &TokenDelta<'_>) {
        self.0.push(news);
    }

    fn end(&mut self, end: &OutputEnd) {
        self.0.end(end);
    }
}

impl Drop for Sink {
    fn drop(&mut self) {
        let why = "the engine dropped the request without a finish reason";
        self.0.end_with(FinishReason::Failed, Some(why.to_owned()));
    }
}

/// Stream of the response to a request. Dropping it before its end aborts the request before the next step.
pub struct ResponseStream {
    id: RequestId,
    outbox: Arc<Outbox>,
    inbox: Arc<Inbox>,
}

impl ResponseStream {
    pub(super) fn new(id: RequestId, outbox: Arc<Outbox>, inbox: Arc<Inbox>) -> Self {
        Self { id, outbox, inbox }
    }

    /// Marks a response whose request was not accepted: dropping it aborts nothing.
    pub(super) fn refused(&self) {
        self.outbox.end_with(FinishReason::Aborted, None);
    }

    /// Request id, for [`EngineHandle::abort`](super::EngineHandle::abort) and observers.
    pub fn id(&self) -> RequestId {
        self.id
    }

    /// Times of the response so far.
    pub fn times(&self) -> ResponseTimes {
        self.outbox.lock().times
    }

    /// Waits for the next part. `None` once the end was read.
    pub fn recv(&mut self) -> Option<OutputChunk> {
        let mut chunk = OutputChunk::default();
        self.recv_into(&mut chunk).then_some(chunk)
    }

    /// Waits for the next part and writes it to `chunk`, whose memory is reused. Returns false once the end was read.
    pub fn recv_into(&mut self, chunk: &mut OutputChunk) -> bool {
        let mut state = self.outbox.lock();
        loop {
            if state.closed {
                return false;
            }
            if state.read(chunk) {
                return true;
            }
            state = self.outbox.ready.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Returns the next part, if there is one.
    pub fn try_recv(&mut self) -> Option<OutputChunk> {
        let mut chunk = OutputChunk::default();
        self.outbox.lock().read(&mut chunk).then_some(chunk)
    }

    /// Waits for the next part, for at most `timeout`.
    pub fn recv_timeout(&mut self, timeout: Duration) -> Option<OutputChunk> {
        let mut chunk = OutputChunk::default();
        let state = self.outbox.lock();
        let nothing = |state: &mut State| !state.closed && !state.has_news();
        let waited = self.outbox.ready.wait_timeout_while(state, timeout, nothing);
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        state.read(&mut chunk).then_some(chunk)
    }

    /// Polls for the next part; the task is woken when there is one. `Ready(None)` once the end was read.
    pub fn poll_recv(&mut self, cx: &mut Context<'_>) -> Poll<Option<OutputChunk>> {
        let mut chunk = OutputChunk::default();
        let mut state = self.outbox.lock();
        if state.read(&mut chunk) {
            return Poll::Ready(Some(chunk));
        }
        if state.closed {
            return Poll::Ready(None);
        }
        match &mut state.waker {
            Some(waker) => waker.clone_from(cx.waker()),
            none => *none = Some(cx.waker().clone()),
        }
        Poll::Pending
    }

    /// Waits for the rest of the response, and returns it as one part.
    pub fn rest(&mut self) -> OutputChunk {
        let (mut whole, mut chunk) = (OutputChunk::default(), OutputChunk::default());
        while self.recv_into(&mut chunk) {
            whole.tokens.extend_from_slice(&chunk.tokens);
            whole.text.push_str(&chunk.text);
            whole.logprobs.append(&mut chunk.logprobs);
            whole.end = chunk.end.take();
        }
        whole
    }
}

impl State {
    fn has_news(&self) -> bool {
        let OutputChunk { tokens, text, end, .. } = &self.unread;
        !tokens.is_empty() || !text.is_empty() || end.is_some()
    }

    /// Moves unread output to `chunk`. It is copied, so that the outbox keeps its memory for the next steps.
    fn read(&mut self, chunk: &mut OutputChunk) -> bool {
        if !self.has_news() {
            return false;
        }
        chunk.clear();
        chunk.tokens.extend_from_slice(&self.unread.tokens);
        chunk.text.push_str(&self.unread.text);
        chunk.logprobs.append(&mut self.unread.logprobs);
        chunk.end = self.unread.end.take();
        self.closed = chunk.end.is_some();
        self.unread.clear();
        true
    }
}

impl Drop for ResponseStream {
    fn drop(&mut self) {
        if !self.outbox.lock().ended {
            // An engine that has ended has nothing to abort.
            let _ = self.inbox.tell(|mail| mail.aborts.push(self.id));
        }
    }
}

impl std::fmt::Debug for ResponseStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ResponseStream").field("id", &self.id).finish_non_exhaustive()
    }
}
