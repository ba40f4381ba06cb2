//! How an answer is told: the parts of OpenAI's objects that are the same in a stream and out of it.

use l5_scheduler::Piece;

use super::logprobs::{self, Cursor};
use super::prompts::Prompt;
use crate::server::answers::{finish_reason, stop_reason};
use crate::server::app::App;
use crate::server::middleware::RequestName;
use crate::server::model::unix_time;
use crate::server::protocol::common::{Sampling, Usage};
use crate::server::protocol::completions::{Completion, CompletionChoice, CompletionFields};

/// What every object of a response has, and what the client wants to be told.
pub(super) struct Telling {
    id: String,
    created: u64,
    model: String,
    /// Whether log probabilities are told, and whether by their tokens' ids.
    logprobs: Option<logprobs::Names>,
    token_ids: bool,
    /// Whether special tokens are part of the text.
    special: bool,
    /// Whether a stream counts tokens at its end.
    pub usage: bool,
    /// Whether it does so all the time.
    pub continuous: bool,
}

impl Telling {
    /// For one request.
    pub fn new(app: &App, name: &RequestName, own: &CompletionFields, sampling: &Sampling) -> Self {
        let names = match own.return_tokens_as_token_ids {
            Some(true) => logprobs::Names::Ids,
            _ => logprobs::Names::Texts,
        };
        let options = sampling.stream_options.unwrap_or_default();
        let usage = options.include_usage == Some(true);
        Self {
            id: format!("cmpl-{}", name.0),
            created: unix_time(),
            model: app.model.name().to_owned(),
            logprobs: own.logprobs.map(|_| names),
            token_ids: sampling.return_token_ids == Some(true),
            special: sampling.skip_special_tokens == Some(false),
            usage,
            continuous: usage && options.continuous_usage_stats == Some(true),
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
            model: self.model.clone(),
            choices,
            usage,
        }
    }

    /// A choice that is an answer from its beginning to its end.
    pub fn whole(
        &self,
        app: &App,
        index: usize,
        prompt: Option<&Prompt>,
        piece: Piece,
    ) -> CompletionChoice {
        self.part(app, index, prompt, &mut Cursor::default(), piece)
    }

    /// A choice that is a part of an answer. The first part comes with the prompt, and the cursor goes from part to part.
    pub fn part(
        &self,
        app: &App,
        index: usize,
        prompt: Option<&Prompt>,
        cursor: &mut Cursor,
        piece: Piece,
    ) -> CompletionChoice {
        let text = match prompt.and_then(|prompt| prompt.echo.as_ref()) {
            Some(echo) => format!("{echo}{}", piece.text),
            None => piece.text,
        };
        let tokenizer = &app.model.tokenizer;
        if let (Some(_), Some(prompt)) = (self.logprobs, prompt) {
            cursor.begin(tokenizer, &prompt.tokens, self.special);
        }
        let logprobs = self.logprobs.map(|names| cursor.table(tokenizer, names, &piece.logprobs));
        let prompt_ids = prompt.filter(|_| self.token_ids).map(|prompt| prompt.tokens.to_vec());
        CompletionChoice {
            index,
            text,
            logprobs,
            finish_reason: piece.end.as_ref().map(|end| finish_reason(end.finish)),
            stop_reason: piece.end.as_ref().and_then(stop_reason),
            token_ids: self.token_ids.then_some(piece.tokens),
            prompt_token_ids: prompt_ids,
        }
    }
}
