//! One answer as it comes: tokens in, text out, and at last why it ended.

use l2_model::tokenizer::Tokenizer;

use super::{StopMatcher, StopReason, StopRules, TextStream};
use crate::error::ParamError;

/// One answer as it comes. Every chosen token is pushed, the one that ends the answer too; each push returns the text
/// that may be shown now, and whether this was the end.
///
/// All pushes (and [`AnswerStream::end`], if it was called), joined, are the answer's text. It is the same whatever the
/// tokens are that spell it.
///
/// The samples of one request start as clones of one stream.
#[derive(Clone, Debug)]
pub struct AnswerStream {
    rules: StopRules,
    text: TextStream,
    matcher: StopMatcher,
    /// Text of the current push; its allocation is reused.
    shown: String,
    tokens: usize,
    ended: Option<StopReason>,
}

impl AnswerStream {
    /// An answer that stands for itself. Without a tokenizer there is no text.
    ///
    /// # Errors
    /// [`ParamError::EmptyStop`]; [`ParamError::StopWithoutText`] for stop strings without a tokenizer.
    pub fn answering(rules: &StopRules, tokenizer: Option<&Tokenizer>) -> Result<Self, ParamError> {
        if tokenizer.is_none() && !rules.strings.is_empty() {
            return Err(ParamError::StopWithoutText);
        }
        Ok(Self {
            matcher: StopMatcher::new(&rules.strings, rules.include_stop_str)?,
            text: TextStream::answering(tokenizer, rules.special_tokens),
            shown: String::new(),
            tokens: 0,
            ended: (rules.max_tokens == 0).then_some(StopReason::Length),
            rules: rules.clone(),
        })
    }

    /// An answer that continues `prompt`, as [`TextStream::continuing`] does. Stop strings are looked for in what is new
    /// only.
    ///
    /// # Errors
    /// As [`AnswerStream::answering`].
    pub fn continuing(
        rules: &StopRules,
        tokenizer: Option<&Tokenizer>,
        prompt: &[u32],
    ) -> Result<Self, ParamError> {
        let stream = Self::answering(rules, tokenizer)?;
        let text = TextStream::continuing(tokenizer, prompt, rules.special_tokens);
        Ok(Self { text, ..stream })
    }

    /// The answer has one more token. Returns the text that may be shown now, and why the answer ended if it did. After
    /// the end there is no more text, and the reason stays.
    ///
    /// What ends an answer, by rank: an end token of the model, a stop token (neither is shown, but a stop token is with
    /// [`StopRules::include_stop_str`]), a stop string, `max_tokens`. A character belongs to the token with which it
    /// becomes certain.
    pub fn push(&mut self, token: u32) -> (&str, Option<StopReason>) {
        self.shown.clear();
        if self.ended.is_none() {
            self.tokens += 1;
            self.take(token);
        }
        (&self.shown, self.ended.clone())
    }

    /// The answer ends here, for a reason that its tokens do not know: its guide, the end of the context, whoever
    /// receives it. Returns the text that was held back, and why the answer ended: where that text turns out to
    /// complete a stop string, or the answer had ended before, that is the reason.
    pub fn end(&mut self, reason: StopReason) -> (&str, StopReason) {
        self.shown.clear();
        if self.ended.is_none() {
            self.release(reason.clone());
        }
        (&self.shown, self.ended.clone().unwrap_or(reason))
    }

    /// Why it ended. An answer of at most 0 tokens has ended before it began.
    pub fn ended(&self) -> Option<&StopReason> {
        self.ended.as_ref()
    }

    /// Tokens so far.
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// Text that waits for more, because it could become a stop string.
    pub fn held(&self) -> &str {
        self.matcher.held()
    }

    /// A token of an answer that has not ended.
    fn take(&mut self, token: u32) {
        // exercise l4.stop
        let ends = self.rules.token(token);
        let shown = match ends {
            None => true,
            Some(StopReason::Token(_)) => self.rules.include_stop_str,
            Some(_) => false,
        };
        if shown {
            let text = self.text.push(token);
            let counts = self.tokens > self.rules.min_tokens;
            self.shown.push_str(self.matcher.take(text, counts));
        }
        let full = self.tokens >= self.rules.max_tokens;
        if self.matcher.stopped().is_some() {
            self.ended = self.found();
        } else if let Some(reason) = ends.or(full.then_some(StopReason::Length)) {
            self.release(reason);
        }
        // end of exercise
    }

    /// Ends the text, whatever waits: first what the detokenizer holds, then what the matcher does.
    fn release(&mut self, reason: StopReason) {
        // exercise l4.stop
        let text = self.text.finish();
        let counts = self.tokens > self.rules.min_tokens;
        self.shown.push_str(self.matcher.take(&text, counts));
        self.shown.push_str(self.matcher.finish());
        self.ended = self.found().or(Some(reason));
        // end of exercise
    }

    /// The stop string that ended the answer, as a reason.
    fn found(&self) -> Option<StopReason> {
        let number = self.matcher.stopped()?;
        Some(StopReason::Text(self.rules.strings[number].clone()))
    }
}
