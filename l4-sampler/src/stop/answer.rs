//! One output as it is generated: tokens in, text out, and at last the stop reason.

use l2_model::tokenizer::Tokenizer;

use super::{StopMatcher, StopReason, StopRules, TextStream};
use crate::error::ParamError;

/// One output as it is generated. Every sampled token is pushed, also the one that ends the output; each push returns
/// the text that can be shown now, and the stop reason if the output has ended.
///
/// The text of all pushes (and of [`AnswerStream::end`], if it was called), joined, is the output text. It does not
/// depend on the tokens that spell it.
///
/// The choices of one request start as clones of one stream.
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
    /// Creates the stream of an output whose text is decoded as a text of its own. Without a tokenizer there is no
    /// text.
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

    /// Creates the stream of an output whose text continues `prompt`, as in [`TextStream::continuing`]. Only the output
    /// text is searched for stop strings.
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

    /// Adds a token. Returns the text that can be shown now, and the stop reason if the output has ended. After the end
    /// there is no more text, and the reason stays the same.
    ///
    /// If several rules end the output at one token, the first of these is the reason: an end token of the model, a
    /// stop token, a stop string, `max_tokens`. End tokens and stop tokens are not shown; with
    /// [`StopRules::include_stop_str`] stop tokens are. A character belongs to the token that completes it.
    pub fn push(&mut self, token: u32) -> (&str, Option<StopReason>) {
        self.shown.clear();
        if self.ended.is_none() {
            self.tokens += 1;
            self.take(token);
        }
        (&self.shown, self.ended.clone())
    }

    /// Ends the output for a reason other than its tokens: its guide, the end of the context, or its receiver. Returns
    /// the text that was held back, and the stop reason. If that text completes a stop string, the stop string is the
    /// reason; if the output had ended before, its reason stays.
    pub fn end(&mut self, reason: StopReason) -> (&str, StopReason) {
        self.shown.clear();
        if self.ended.is_none() {
            self.release(reason.clone());
        }
        (&self.shown, self.ended.clone().unwrap_or(reason))
    }

    /// Stop reason, if the output has ended. With a `max_tokens` of 0 it has ended from the start.
    pub fn ended(&self) -> Option<&StopReason> {
        self.ended.as_ref()
    }

    /// Number of tokens so far.
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// Text that is held back, because it could become a stop string.
    pub fn held(&self) -> &str {
        self.matcher.held()
    }

    /// Takes a token of an output that has not ended.
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

    /// Ends the output and releases the text that is held back: first the detokenizer's, then the matcher's.
    fn release(&mut self, reason: StopReason) {
        // exercise l4.stop
        let text = self.text.finish();
        let counts = self.tokens > self.rules.min_tokens;
        self.shown.push_str(self.matcher.take(&text, counts));
        self.shown.push_str(self.matcher.finish());
        self.ended = self.found().or(Some(reason));
        // end of exercise
    }

    /// The stop string that ended the output, as a stop reason.
    fn found(&self) -> Option<StopReason> {
        let number = self.matcher.stopped()?;
        Some(StopReason::Text(self.rules.strings[number].clone()))
    }
}
