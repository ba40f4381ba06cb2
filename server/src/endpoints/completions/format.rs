//! Output events as OpenAI's completions write them, streamed or whole.

use std::sync::Arc;

use l4_sampler::output::OutputEvent;

use super::logprobs::{self, Cursor};
use super::prompts::Prompt;
use crate::choices::ChoiceDelta;
use crate::middleware::HttpRequestId;
use crate::model::{ServedModel, unix_time};
use crate::protocol::common::{Sampling, Usage};
use crate::protocol::completions::{Completion, CompletionChoice, CompletionFields};
use crate::responses::{finish_reason, stop_reason};

/// Fields that every object of a response has, and the options of the request that select its content.
pub(super) struct Format {
    id: String,
    created: u64,
    model: Arc<ServedModel>,
    /// How tokens are named in log probabilities, if the request asks for them.
    logprobs: Option<logprobs::Names>,
    token_ids: bool,
    /// Whether special tokens are part of the text.
    special: bool,
    /// Whether a stream reports usage at its end.
    pub include_usage: bool,
    /// Whether it does so with every object.
    pub continuous_usage: bool,
}

/// How far a choice has been formatted.
#[derive(Clone, Default)]
pub(super) struct Progress {
    cursor: Cursor,
}

impl Format {
    /// Format of one request's response.
    pub fn new(
        model: Arc<ServedModel>,
        id: &HttpRequestId,
        own: &CompletionFields,
        sampling: &Sampling,
    ) -> Self {
        let names = match own.return_tokens_as_token_ids {
            Some(true) => logprobs::Names::Ids,
            _ => logprobs::Names::Texts,
        };
        let options = sampling.stream_options.unwrap_or_default();
        let include_usage = options.include_usage == Some(true);
        Self {
            id: format!("cmpl-{}", id.0),
            created: unix_time(),
            model,
            logprobs: own.logprobs.map(|_| names),
            token_ids: sampling.return_token_ids == Some(true),
            special: sampling.skip_special_tokens == Some(false),
            include_usage,
            continuous_usage: include_usage && options.continuous_usage_stats == Some(true),
        }
    }

    /// The object around choices.
    pub fn completion(
        &self,
        choices: Vec<CompletionChoice>,
        usage: Option<Option<Usage>>,
    ) -> Completion {
        Completion {
            id: self.id.clone(),
            object: "text_completion",
            created: self.created,
            model: self.model.name().to_owned(),
            choices,
            usage,
        }
    }

    /// Formats what is new of a choice, with the tokens that it has taken so far. The first part of a choice comes with
    /// its prompt, if the request wants the prompt back.
    pub fn choice(
        &self,
        prompt: Option<&Prompt>,
        progress: &mut Progress,
        delta: ChoiceDelta,
    ) -> (CompletionChoice, Usage) {
        let ChoiceDelta { index, events, tokens, logprobs } = delta;
        let tokenizer = &self.model.tokenizer;
        let mut choice = CompletionChoice {
            index,
            text: String::new(),
            logprobs: None,
            finish_reason: None,
            stop_reason: None,
            token_ids: None,
            prompt_token_ids: None,
        };
        let mut usage = Usage::default();
        for event in events {
            match event {
                OutputEvent::Start => {
                    let Some(prompt) = prompt else { continue };
                    choice.text.push_str(prompt.echo.as_deref().unwrap_or_default());
                    if self.logprobs.is_some() {
                        progress.cursor.begin(tokenizer, &prompt.tokens, self.special);
                    }
                    choice.prompt_token_ids = self.token_ids.then(|| prompt.tokens.to_vec());
                }
                OutputEvent::Text(text) => choice.text.push_str(&text),
                OutputEvent::End { finish, stop, .. } => {
                    choice.finish_reason = Some(finish_reason(finish));
                    choice.stop_reason = stop_reason(finish, stop.as_ref());
                }
                OutputEvent::Usage(of) => usage = of.into(),
                // A plain parser emits text only.
                OutputEvent::Reasoning(_)
                | OutputEvent::ToolCallStart { .. }
                | OutputEvent::ToolCallArguments { .. } => {}
            }
        }
        choice.logprobs =
            self.logprobs.map(|names| progress.cursor.table(tokenizer, names, &logprobs));
        choice.token_ids = self.token_ids.then_some(tokens);
        (choice, usage)
    }
}
