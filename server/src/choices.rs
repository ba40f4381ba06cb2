//! The choices of one request as output events, whole or as they are generated.
//!
//! ```text
//! engine --ResponseStreams--> OutputChunk --OutputParser of the choice--> ChoiceDelta
//! ChoiceDelta --formatter--> JSON or server-sent events
//! ```
//!
//! Chats and completions differ in their formatters only.

use axum::body::Bytes;
use axum::response::Response;
use futures_util::stream::unfold;
use l4_sampler::TokenLogprobs;
use l4_sampler::output::{OutputDelta, OutputEvent, OutputParser, OutputUsage};
use l5_scheduler::{DraftCounts, OutputChunk};

use crate::error::ApiError;
use crate::observed::PrimaryResponse;
use crate::protocol::common::Usage;
use crate::responses::{ResponseStreams, failure};
use crate::sse;

/// Choices of one request. Those that have not ended are aborted when this is dropped.
pub struct Choices {
    responses: ResponseStreams,
    /// Parser of each choice.
    parsers: Vec<OutputParser>,
    /// Tokens of all prompts, each counted once.
    prompt_tokens: usize,
    /// Tokens of all choices so far.
    completion_tokens: usize,
    /// Drafts of all choices that have ended.
    drafts: DraftCounts,
    /// First choice, if something is learned from it.
    primary: Option<PrimaryResponse>,
}

/// New output of one choice.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ChoiceDelta {
    /// Index of the choice in the response.
    pub index: usize,
    /// Events, in order.
    pub events: Vec<OutputEvent>,
    /// New tokens.
    pub tokens: Vec<u32>,
    /// Log probabilities of the new tokens, if the request asked for them.
    pub logprobs: Vec<TokenLogprobs>,
}

impl Choices {
    /// Combines engine requests with their parsers, in order.
    pub fn new(
        responses: ResponseStreams,
        parsers: Vec<OutputParser>,
        prompt_tokens: usize,
    ) -> Self {
        let drafts = DraftCounts::default();
        Self { responses, parsers, prompt_tokens, completion_tokens: 0, drafts, primary: None }
    }

    /// Has the first choice observed.
    #[must_use]
    pub fn observed(mut self, primary: Option<PrimaryResponse>) -> Self {
        self.primary = primary;
        self
    }

    /// Response streams of the choices.
    pub fn responses(&self) -> &ResponseStreams {
        &self.responses
    }

    /// Tokens of the whole request so far: the prompts once, and all choices. Drafts are counted with a choice's end.
    pub fn usage(&self) -> Usage {
        let details = self.responses.speculates().then(|| self.drafts.into());
        Usage {
            completion_tokens_details: details,
            ..Usage::new(self.prompt_tokens, self.responses.cached(), self.completion_tokens)
        }
    }

    /// Waits for the first output, so that a failure before it is a response with an error status.
    ///
    /// # Errors
    /// As [`Choices::next`].
    pub async fn begun(&mut self) -> Result<(), ApiError> {
        self.responses.begun().await
    }

    /// Next output of any choice; `None` when all have ended.
    ///
    /// # Errors
    /// [`ApiError`] when the request timed out, or when a choice failed.
    pub async fn next(&mut self) -> Result<Option<ChoiceDelta>, ApiError> {
        let Some((index, chunk)) = self.responses.next().await? else { return Ok(None) };
        failure(&chunk)?;
        Ok(Some(self.parse(index, chunk)))
    }

    /// Waits for all choices, and returns them in order.
    ///
    /// # Errors
    /// As [`Choices::next`].
    pub async fn all(&mut self) -> Result<Vec<ChoiceDelta>, ApiError> {
        let chunks = self.responses.all().await?;
        Ok(chunks.into_iter().enumerate().map(|(index, chunk)| self.parse(index, chunk)).collect())
    }

    fn parse(&mut self, index: usize, chunk: OutputChunk) -> ChoiceDelta {
        let OutputChunk { tokens, text, logprobs, end } = chunk;
        self.completion_tokens += tokens.len();
        self.drafts += end.as_ref().map(|end| end.drafts).unwrap_or_default();
        if index == 0
            && let Some(mut primary) = self.primary.take()
        {
            primary.push(&text, tokens.len());
            match &end {
                None => self.primary = Some(primary),
                Some(end) => primary.end(end.finish, self.responses.times(0)),
            }
        }
        let cached_tokens = self.responses.times(index).map_or(0, |times| times.cached);
        let end = end.map(|end| (end.finish, end.stop));
        let delta = OutputDelta { text: &text, tokens: tokens.len(), cached_tokens, end };
        let mut events = Vec::new();
        if let Some(parser) = self.parsers.get_mut(index) {
            parser.push(&delta, &mut events);
        }
        ChoiceDelta { index, events, tokens, logprobs }
    }
}

/// Formats the choices of a request as server-sent events.
pub trait StreamFormat: Send + 'static {
    /// Formats new output of one choice as any number of events.
    fn delta(&mut self, delta: ChoiceDelta) -> Bytes;

    /// Formats the events between the last choice's end and `[DONE]`.
    fn end(&mut self, usage: Usage) -> Bytes;
}

/// Streams choices until all have ended. An error after the head of the response is an event before `[DONE]`.
pub fn stream(choices: Choices, format: impl StreamFormat) -> Response {
    sse::response(unfold(Some((choices, format)), |state| async {
        let (mut choices, mut format) = state?;
        loop {
            return match choices.next().await {
                Ok(Some(delta)) => {
                    let events = format.delta(delta);
                    if events.is_empty() {
                        continue;
                    }
                    Some((events, Some((choices, format))))
                }
                Ok(None) => {
                    let end = format.end(choices.usage());
                    Some(([end, sse::DONE].concat().into(), None))
                }
                // The choices that are still open are dropped here, and so aborted.
                Err(why) => {
                    choices.responses.failed(&why);
                    Some(([sse::event(&why.body()), sse::DONE].concat().into(), None))
                }
            };
        }
    }))
}

impl From<OutputUsage> for Usage {
    fn from(of: OutputUsage) -> Self {
        Self::new(of.prompt_tokens, of.cached_tokens, of.completion_tokens)
    }
}
