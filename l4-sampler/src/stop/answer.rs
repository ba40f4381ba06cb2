//! One answer as it comes: tokens in, text out, and at last why it ended.

use l2_model::tokenizer::{Detokenizer, Tokenizer};

use super::{StopMatcher, StopReason, StopRules};
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
    /// None where there is no text, and after the end.
    detokenizer: Option<Detokenizer>,
    matcher: StopMatcher,
    /// What the prompt alone would have ended with, held back until the next token confirms it: it is not new.
    prompt_tail: String,
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
            detokenizer: tokenizer.map(|t| t.detokenizer(true)),
            prompt_tail: String::new(),
            shown: String::new(),
            tokens: 0,
            ended: (rules.max_tokens == 0).then_some(StopReason::Length),
            rules: rules.clone(),
        })
    }

    /// An answer that continues `prompt`: joined to the prompt's text, it reads as both decoded together. (A SentencePiece
    /// tokenizer drops the space before the first word of a text. The first new word is not that.) Stop strings are
    /// looked for in what is new only.
    ///
    /// # Errors
    /// As [`AnswerStream::answering`].
    pub fn continuing(
        rules: &StopRules,
        tokenizer: Option<&Tokenizer>,
        prompt: &[u32],
    ) -> Result<Self, ParamError> {
        let mut stream = Self::answering(rules, tokenizer)?;
        if let Some(detokenizer) = &mut stream.detokenizer {
            for &id in prompt {
                // An id that the tokenizer has no word for has no text.
                let _ = detokenizer.push(id);
            }
            stream.prompt_tail = detokenizer.clone().finish();
        }
        Ok(stream)
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

    fn take(&mut self, token: u32) {
        // exercise l4.stop
        let ends = self.rules.token(token);
        let shown = match ends {
            None => true,
            Some(StopReason::Token(_)) => self.rules.include_stop_str,
            Some(_) => false,
        };
        if shown {
            self.text_of(token);
        }
        let full = self.tokens >= self.rules.max_tokens;
        if let Some(number) = self.matcher.stopped() {
            self.ended = Some(StopReason::Text(self.rules.strings[number].clone()));
        } else if let Some(reason) = ends.or(full.then_some(StopReason::Length)) {
            self.release(reason);
        }
        // end of exercise
    }

    /// Shows what is certain with this token. Special tokens have no text, and neither have ids that the embedding has
    /// room for and the tokenizer no word.
    fn text_of(&mut self, token: u32) {
        let Some(detokenizer) = &mut self.detokenizer else { return };
        let text = detokenizer.push(token).unwrap_or_default();
        let new = without(&mut self.prompt_tail, text);
        let counts = self.tokens > self.rules.min_tokens;
        self.shown.push_str(if counts { self.matcher.push(new) } else { self.matcher.pass(new) });
    }

    /// Ends the text, whatever waits: first what the detokenizer holds, then what the matcher does.
    fn release(&mut self, reason: StopReason) {
        // exercise l4.stop
        if let Some(detokenizer) = self.detokenizer.take() {
            let text = detokenizer.finish();
            let new = without(&mut self.prompt_tail, &text);
            let counts = self.tokens > self.rules.min_tokens;
            self.shown.push_str(if counts {
                self.matcher.push(new)
            } else {
                self.matcher.pass(new)
            });
            self.shown.push_str(self.matcher.finish());
        }
        self.ended = Some(match self.matcher.stopped() {
            Some(number) => StopReason::Text(self.rules.strings[number].clone()),
            None => reason,
        });
        // end of exercise
    }
}

/// `text` without what of it is the prompt's. Where the new token completes a character that the prompt began, all of
/// it is new.
fn without<'a>(prompt_tail: &mut String, text: &'a str) -> &'a str {
    if text.is_empty() || prompt_tail.is_empty() {
        return text;
    }
    let tail = std::mem::take(prompt_tail);
    text.strip_prefix(tail.as_str()).unwrap_or(text)
}
