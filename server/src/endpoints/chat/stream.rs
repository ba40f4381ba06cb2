//! Chat completions as a stream of chunks.
//!
//! New output of a choice is one chunk, or none while all of its text could still become a tag. The first chunk of a
//! choice has its role. The last one has its finish_reason and nothing else: OpenAI's own client takes a tool call for
//! complete when the finish_reason comes after it, and misses the call when both come together.

use axum::body::Bytes;

use super::Chat;
use super::format::Parts;
use super::logprobs::logprobs;
use crate::choices::{ChoiceDelta, StreamFormat};
use crate::protocol::chat::{ChatChunk, ChatChunkChoice, Delta};
use crate::protocol::common::Usage;
use crate::sse;

pub struct Chunks {
    chat: Chat,
    /// The common fields of all chunks, and the choices of the next one.
    chunk: ChatChunk,
}

impl Chunks {
    /// The chunks of a chat.
    pub fn new(chat: Chat) -> Self {
        let chunk = ChatChunk {
            id: chat.id.clone(),
            object: "chat.completion.chunk",
            created: chat.created,
            model: chat.model.name().into(),
            choices: Vec::new(),
            usage: None,
            prompt_token_ids: None,
        };
        Self { chunk, chat }
    }

    fn event(&mut self, choice: ChatChunkChoice, usage: Usage, events: &mut Vec<u8>) {
        self.chunk.choices.clear();
        self.chunk.choices.push(choice);
        // With `include_usage` every chunk has the field: null until the end, unless usage is continuous.
        let now = self.chat.continuous_usage.then_some(usage);
        self.chunk.usage = self.chat.include_usage.then_some(now);
        events.extend_from_slice(&sse::event(&self.chunk));
    }
}

impl StreamFormat for Chunks {
    fn delta(&mut self, delta: ChoiceDelta) -> Bytes {
        let ChoiceDelta { index, events, tokens, logprobs: of_tokens } = delta;
        let Parts { starts, delta, end, usage } = Parts::of(events);
        let usage = usage.into();
        let chat = &self.chat;
        let end = end.map(|(finish, stop, calls)| chat.end(finish, stop, calls, true));
        let reports_tokens = (chat.logprobs || chat.token_ids) && !tokens.is_empty();
        let mut events = Vec::new();
        if starts {
            let role =
                Delta { role: Some("assistant"), content: Some(String::new()), ..Delta::default() };
            self.chunk.prompt_token_ids = self.chat.token_ids.then(|| self.chat.prompt.clone());
            let choice = ChatChunkChoice { index, delta: role, ..ChatChunkChoice::default() };
            self.event(choice, usage, &mut events);
            self.chunk.prompt_token_ids = None;
        }
        if delta != Delta::default() || reports_tokens {
            let chat = &self.chat;
            let tokenizer = &chat.model.tokenizer;
            let choice = ChatChunkChoice {
                index,
                delta,
                logprobs: chat.logprobs.then(|| logprobs(tokenizer, &of_tokens)),
                token_ids: chat.token_ids.then_some(tokens),
                ..ChatChunkChoice::default()
            };
            self.event(choice, usage, &mut events);
        }
        if let Some((finish_reason, stop_reason)) = end {
            let finish_reason = Some(finish_reason);
            let choice =
                ChatChunkChoice { index, finish_reason, stop_reason, ..ChatChunkChoice::default() };
            self.event(choice, usage, &mut events);
        }
        events.into()
    }

    fn end(&mut self, usage: Usage) -> Bytes {
        if !self.chat.include_usage {
            return Bytes::new();
        }
        self.chunk.choices.clear();
        self.chunk.usage = Some(Some(usage));
        sse::event(&self.chunk)
    }
}
