//! Where an answer waits to be read.
//!
//! The engine puts in what a step gave, and goes on; it never waits for a reader. What nobody has read yet lies joined in
//! one place, so that a slow reader finds more at once, not a longer line, and an outbox never holds more than one answer.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use l4_sampler::TokenLogprobs;

use super::inbox::Inbox;
use super::load::Gauge;
use crate::request::ANSWER_ROOM;
use crate::runner::{AnswerEnd, AnswerSink, News};
use crate::{FinishReason, RequestId};

/// A part of an answer: what came since the last one was read.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Piece {
    /// Its tokens.
    pub tokens: Vec<u32>,
    /// Their text, as far as it is certain.
    pub text: String,
    /// One entry for each token, if asked for.
    pub logprobs: Vec<TokenLogprobs>,
    /// With the last piece: how the answer ended.
    pub end: Option<AnswerEnd>,
}

impl Piece {
    fn clear(&mut self) {
        self.tokens.clear();
        self.text.clear();
        self.logprobs.clear();
        self.end = None;
    }
}

/// When an answer came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AnswerTimes {
    /// When it was asked for.
    pub submitted: Instant,
    /// When it was first scheduled: until then it waited.
    pub scheduled: Option<Instant>,
    /// When its first token came.
    pub first: Option<Instant>,
    /// When its last piece came.
    pub last: Option<Instant>,
    /// Tokens of its prompt that were in the cache when it was first admitted.
    pub cached: usize,
}

/// The mailbox of one request: the engine writes, one reads.
pub(super) struct Outbox {
    state: Mutex<State>,
    ready: Condvar,
    gauge: Arc<Gauge>,
}

struct State {
    /// What nobody has read.
    unread: Piece,
    /// Who is to be woken.
    waker: Option<Waker>,
    times: AnswerTimes,
    /// Whether log probabilities come with the tokens.
    logprobs: bool,
    /// Whether the first admission was told.
    admitted: bool,
    /// What is counted of it in the load: tokens of the prompt until the first of the answer, and of the answer at most.
    prompt: usize,
    owed: usize,
    ended: bool,
    /// Whether the end was read.
    closed: bool,
}

impl Outbox {
    /// For an answer of at most `owed` tokens to a prompt of `prompt`, with log probabilities if `told`.
    pub(super) fn new(gauge: Arc<Gauge>, prompt: usize, owed: usize, told: bool) -> Arc<Self> {
        gauge.add(prompt, owed);
        let submitted = Instant::now();
        let times = AnswerTimes { submitted, scheduled: None, first: None, last: None, cached: 0 };
        let state = State {
            unread: Piece::default(),
            logprobs: told,
            waker: None,
            times,
            admitted: false,
            prompt,
            owed,
            ended: false,
            closed: false,
        };
        Arc::new(Self { state: Mutex::new(state), ready: Condvar::new(), gauge })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The request has a seat for the first time, with so many tokens from the cache.
    pub(super) fn admitted(&self, cached: usize) {
        let mut state = self.lock();
        if !std::mem::replace(&mut state.admitted, true) {
            state.times.cached = cached;
            state.times.scheduled = Some(Instant::now());
            // Not before: a request that waits takes little memory.
            let room = state.owed.min(ANSWER_ROOM);
            state.unread.tokens.reserve(room);
            // A token has fewer bytes of text in most languages; longer words make more room.
            state.unread.text.reserve(8 * room);
            if state.logprobs {
                state.unread.logprobs.reserve(room);
            }
        }
    }

    fn push(&self, news: &News<'_>) {
        let mut state = self.lock();
        if state.ended {
            return;
        }
        if !news.tokens.is_empty() {
            let now = Instant::now();
            state.times.first.get_or_insert(now);
            state.times.last = Some(now);
            let (prompt, came) = (std::mem::take(&mut state.prompt), news.tokens.len());
            let paid = came.min(state.owed);
            state.owed -= paid;
            self.gauge.sub(prompt, paid);
        }
        state.unread.tokens.extend_from_slice(news.tokens);
        state.unread.text.push_str(news.text);
        state.unread.logprobs.extend_from_slice(news.logprobs);
        self.wake(state);
    }

    /// The end, unless there was one.
    pub(super) fn end(&self, end: &AnswerEnd) {
        let mut state = self.lock();
        if std::mem::replace(&mut state.ended, true) {
            return;
        }
        state.unread.end = Some(end.clone());
        state.times.last = Some(Instant::now());
        self.gauge.sub(state.prompt, state.owed);
        self.wake(state);
    }

    /// An end that no executor told.
    pub(super) fn end_with(&self, finish: FinishReason, error: Option<String>) {
        self.end(&AnswerEnd { finish, stop: None, error });
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

/// What the executor writes to. Whoever drops it without a word has failed.
pub(super) struct Sink(pub Arc<Outbox>);

impl AnswerSink for Sink {
    fn push(&mut self, news: &News<'_>) {
        self.0.push(news);
    }

    fn end(&mut self, end: &AnswerEnd) {
        self.0.end(end);
    }
}

impl Drop for Sink {
    fn drop(&mut self) {
        let why = "the engine gave the request up without saying why";
        self.0.end_with(FinishReason::Failed, Some(why.to_owned()));
    }
}

/// An answer on its way. Dropped before its end, it is not wanted any more: the request is aborted before the next step.
pub struct Answer {
    id: RequestId,
    outbox: Arc<Outbox>,
    inbox: Arc<Inbox>,
}

impl Answer {
    pub(super) fn new(id: RequestId, outbox: Arc<Outbox>, inbox: Arc<Inbox>) -> Self {
        Self { id, outbox, inbox }
    }

    /// It was not taken, so that nobody has to be told to abort it.
    pub(super) fn refused(&self) {
        self.outbox.end_with(FinishReason::Aborted, None);
    }

    /// The request's name, for [`EngineHandle::abort`](super::EngineHandle::abort) and observers.
    pub fn id(&self) -> RequestId {
        self.id
    }

    /// When it came, as far as it has.
    pub fn times(&self) -> AnswerTimes {
        self.outbox.lock().times
    }

    /// The next piece: waits for it. `None` once the end was read.
    pub fn recv(&mut self) -> Option<Piece> {
        let mut piece = Piece::default();
        self.recv_into(&mut piece).then_some(piece)
    }

    /// The next piece into memory that is there: waits for it. False once the end was read.
    pub fn recv_into(&mut self, piece: &mut Piece) -> bool {
        let mut state = self.outbox.lock();
        loop {
            if state.closed {
                return false;
            }
            if state.read(piece) {
                return true;
            }
            state = self.outbox.ready.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// The next piece, if there is one.
    pub fn try_recv(&mut self) -> Option<Piece> {
        let mut piece = Piece::default();
        self.outbox.lock().read(&mut piece).then_some(piece)
    }

    /// The next piece, if it comes in time.
    pub fn recv_timeout(&mut self, most: Duration) -> Option<Piece> {
        let mut piece = Piece::default();
        let state = self.outbox.lock();
        let nothing = |state: &mut State| !state.closed && !state.has_news();
        let waited = self.outbox.ready.wait_timeout_while(state, most, nothing);
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        state.read(&mut piece).then_some(piece)
    }

    /// The next piece, for a task that is woken when there is one. `None` once the end was read.
    pub fn poll_recv(&mut self, cx: &mut Context<'_>) -> Poll<Option<Piece>> {
        let mut piece = Piece::default();
        let mut state = self.outbox.lock();
        if state.read(&mut piece) {
            return Poll::Ready(Some(piece));
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

    /// All of it that was not read yet, up to the end.
    pub fn rest(&mut self) -> Piece {
        let (mut whole, mut piece) = (Piece::default(), Piece::default());
        while self.recv_into(&mut piece) {
            whole.tokens.extend_from_slice(&piece.tokens);
            whole.text.push_str(&piece.text);
            whole.logprobs.append(&mut piece.logprobs);
            whole.end = piece.end.take();
        }
        whole
    }
}

impl State {
    fn has_news(&self) -> bool {
        let Piece { tokens, text, end, .. } = &self.unread;
        !tokens.is_empty() || !text.is_empty() || end.is_some()
    }

    /// Hand out what is unread. It is copied, so that the outbox keeps its memory for the steps to come.
    fn read(&mut self, piece: &mut Piece) -> bool {
        if !self.has_news() {
            return false;
        }
        piece.clear();
        piece.tokens.extend_from_slice(&self.unread.tokens);
        piece.text.push_str(&self.unread.text);
        piece.logprobs.append(&mut self.unread.logprobs);
        piece.end = self.unread.end.take();
        self.closed = piece.end.is_some();
        self.unread.clear();
        true
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        if !self.outbox.lock().ended {
            // An engine that is no more has nothing to abort.
            let _ = self.inbox.tell(|mail| mail.aborts.push(self.id));
        }
    }
}

impl std::fmt::Debug for Answer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Answer").field("id", &self.id).finish_non_exhaustive()
    }
}
