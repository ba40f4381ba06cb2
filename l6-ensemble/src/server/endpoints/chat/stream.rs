//! Answers told as they come.
//!
//! Each piece that the engine gives is one event, or none where all of its text could still become a tag. The first event
//! of an answer says who speaks. Its last one says why it ended, and nothing else: OpenAI's own client takes a call for
//! complete when that comes behind it, and misses it when it comes with it.

use axum::body::Bytes;
use axum::response::Response;
use futures_util::stream::unfold;
use l5_scheduler::Piece;

use super::Chat;
use super::logprobs::logprobs;
use super::reader::Reader;
use crate::server::answers::failure;
use crate::server::error::ApiError;
use crate::server::protocol::chat::{ChatChunk, ChatChunkChoice, Delta};
use crate::server::sse;

/// Wait for the first piece, so that what fails before it fails as a response of its own; then stream.
///
/// # Errors
/// [`ApiError`]: the time is up, or the engine could not begin.
pub async fn stream(mut chat: Chat) -> Result<Response, ApiError> {
    chat.answers.begun().await?;
    let headers = chat.headers();
    let events = unfold(Some(Stream::new(chat)), |stream| async move {
        let mut stream = stream?;
        let (events, goes_on) = stream.next().await;
        Some((events, goes_on.then_some(stream)))
    });
    let mut response = sse::response(events);
    response.headers_mut().extend(headers);
    Ok(response)
}

struct Stream {
    chat: Chat,
    /// One for each answer; `None` before its first event.
    readers: Vec<Option<Reader>>,
    completion: usize,
    /// What all events have in common, and the choices of the next one.
    chunk: ChatChunk,
}

impl Stream {
    fn new(chat: Chat) -> Self {
        let chunk = ChatChunk {
            id: chat.id.clone(),
            object: "chat.completion.chunk",
            created: chat.created,
            model: chat.app.model.name().into(),
            choices: Vec::new(),
            usage: None,
            prompt_token_ids: None,
        };
        Self { readers: vec![None; chat.answers.len()], completion: 0, chunk, chat }
    }

    /// The next events, and whether more come.
    async fn next(&mut self) -> (Bytes, bool) {
        loop {
            let error = match self.chat.answers.next().await {
                Ok(Some((at, piece))) => match failure(&piece) {
                    Ok(()) => {
                        let events = self.piece(at, &piece);
                        if events.is_empty() {
                            continue;
                        }
                        return (events, true);
                    }
                    Err(error) => error,
                },
                Ok(None) => return (self.end(), false),
                Err(error) => error,
            };
            // The answers that are still open are dropped with this stream, and so aborted.
            return ([sse::event(&error.body()), sse::DONE].concat().into(), false);
        }
    }

    /// What a piece of an answer says; nothing where all of it is held back.
    fn piece(&mut self, at: usize, piece: &Piece) -> Bytes {
        let Self { chat, readers, completion, .. } = self;
        *completion += piece.tokens.len();
        let Some(reader) = readers.get_mut(at) else { return Bytes::new() };
        let begins = reader.is_none();
        let reader = reader.get_or_insert_with(|| chat.reader.clone());
        let delta = reader.read(&piece.text, piece.end.is_some());
        let end = piece.end.as_ref().map(|end| chat.end(reader, end, true));
        let (finish_reason, stop_reason) = end.unzip();
        let told = (chat.logprobs || chat.token_ids) && !piece.tokens.is_empty();
        let silent = delta == Delta::default() && !told;
        let mut events = Vec::new();
        if begins {
            let role =
                Delta { role: Some("assistant"), content: Some(String::new()), ..Delta::default() };
            let prompt = chat.token_ids.then(|| chat.prompt.clone());
            self.chunk.prompt_token_ids = prompt;
            let choice = ChatChunkChoice { index: at, delta: role, ..ChatChunkChoice::default() };
            self.event(choice, &mut events);
            self.chunk.prompt_token_ids = None;
        }
        if !silent {
            let chat = &self.chat;
            let tokenizer = &chat.app.model.tokenizer;
            let choice = ChatChunkChoice {
                index: at,
                delta,
                logprobs: chat.logprobs.then(|| logprobs(tokenizer, &piece.logprobs)),
                token_ids: chat.token_ids.then(|| piece.tokens.clone()),
                ..ChatChunkChoice::default()
            };
            self.event(choice, &mut events);
        }
        if finish_reason.is_some() {
            let stop_reason = stop_reason.flatten();
            let choice = ChatChunkChoice {
                index: at,
                finish_reason,
                stop_reason,
                ..ChatChunkChoice::default()
            };
            self.event(choice, &mut events);
        }
        events.into()
    }

    fn event(&mut self, choice: ChatChunkChoice, events: &mut Vec<u8>) {
        self.chunk.choices.clear();
        self.chunk.choices.push(choice);
        // Who asks for usage gets the field with every event: null until it is told.
        let now = self.chat.counts_always.then(|| self.chat.usage(self.completion));
        self.chunk.usage = self.chat.counts.then_some(now);
        events.extend_from_slice(&sse::event(&self.chunk));
    }

    fn end(&mut self) -> Bytes {
        let mut events = Vec::new();
        if self.chat.counts {
            self.chunk.choices.clear();
            self.chunk.usage = Some(Some(self.chat.usage(self.completion)));
            events.extend_from_slice(&sse::event(&self.chunk));
        }
        events.extend_from_slice(&sse::DONE);
        events.into()
    }
}
