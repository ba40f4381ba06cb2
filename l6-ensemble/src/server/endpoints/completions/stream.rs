//! Answers told as they come: an event for what came since the last one, whichever answer it is of.

use std::sync::Arc;

use axum::body::Bytes;
use axum::response::Response;
use futures_util::stream::unfold;
use l5_scheduler::Piece;

use super::logprobs::Cursor;
use super::prompts::Prompt;
use super::telling::Telling;
use super::usage;
use crate::server::answers::{Answers, failure};
use crate::server::app::App;
use crate::server::error::ApiError;
use crate::server::protocol::common::Usage;
use crate::server::sse;

/// A response on its way. Dropped when the client is gone, and with it the answers.
pub(super) struct Streaming {
    app: Arc<App>,
    telling: Telling,
    prompts: Vec<Prompt>,
    /// Answers to each prompt.
    n: usize,
    answers: Answers,
    /// How far each answer is told.
    told: Vec<Told>,
}

#[derive(Clone, Default)]
struct Told {
    begun: bool,
    tokens: usize,
    cursor: Cursor,
}

/// What comes next.
enum Next {
    Pieces(Box<Streaming>),
    Done,
    Nothing,
}

impl Streaming {
    /// A response whose answers have begun.
    pub fn new(
        app: Arc<App>,
        telling: Telling,
        prompts: Vec<Prompt>,
        n: u32,
        answers: Answers,
    ) -> Self {
        let told = vec![Told::default(); answers.len()];
        Self { app, telling, prompts, n: (n as usize).max(1), answers, told }
    }

    /// The response.
    pub fn response(self) -> Response {
        sse::response(unfold(Next::Pieces(Box::new(self)), |next| async {
            match next {
                Next::Pieces(streaming) => Some(streaming.step().await),
                Next::Done => Some((sse::DONE, Next::Nothing)),
                Next::Nothing => None,
            }
        }))
    }

    async fn step(mut self: Box<Self>) -> (Bytes, Next) {
        match self.answers.next().await {
            Ok(Some((at, piece))) => match failure(&piece) {
                Ok(()) => (self.event(at, piece), Next::Pieces(self)),
                Err(why) => gone_wrong(&why),
            },
            Ok(None) if self.telling.usage => {
                let tokens = self.told.iter().map(|told| told.tokens).sum();
                let usage = usage(&self.prompts, &self.answers, tokens);
                let completion = self.telling.completion(Vec::new(), Some(Some(usage)));
                (sse::event(&completion), Next::Done)
            }
            Ok(None) => (sse::DONE, Next::Nothing),
            Err(why) => gone_wrong(&why),
        }
    }

    fn event(&mut self, at: usize, piece: Piece) -> Bytes {
        let prompt = self.prompts.get(at / self.n);
        let Some(told) = self.told.get_mut(at) else { return Bytes::new() };
        told.tokens += piece.tokens.len();
        let usage = match (self.telling.usage, self.telling.continuous, prompt) {
            (true, true, Some(prompt)) => {
                let cached = self.answers.times(at).map_or(0, |times| times.cached);
                Some(Some(Usage::new(prompt.tokens.len(), cached, told.tokens)))
            }
            (true, ..) => Some(None),
            (false, ..) => None,
        };
        let prompt = prompt.filter(|_| !std::mem::replace(&mut told.begun, true));
        let choice = self.telling.part(&self.app, at, prompt, &mut told.cursor, piece);
        sse::event(&self.telling.completion(vec![choice], usage))
    }
}

/// The status is long sent, so the error is an event, and the last but one.
fn gone_wrong(why: &ApiError) -> (Bytes, Next) {
    (sse::event(&why.body()), Next::Done)
}
