//! When an answer ends, and what of its text may be shown already.
//!
//! A model writes tokens, a request names texts. A stop string may begin in the middle of one token and end in the
//! middle of the third after it, and by the time it is complete its beginning must not have been shown to anybody. So
//! text waits while it could still become a stop string, and not a character longer:
//!
//! * [`StopRules`]: what one request wants to stop at;
//! * [`TextStream`]: the text of tokens as they come;
//! * [`StopMatcher`]: stop strings in text that comes in pieces;
//! * [`AnswerStream`]: one answer as it comes: tokens in, text and at last a [`StopReason`] out.

mod answer;
mod automaton;
mod matcher;
mod text;

pub use answer::AnswerStream;
pub use matcher::StopMatcher;
pub use text::TextStream;

use crate::error::ParamError;

/// What ends one request's answer. [`Default`] is nothing at all: an answer without end, but for the context's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StopRules {
    /// The model's own end tokens (end of sequence, end of turn).
    pub eos: Vec<u32>,
    /// Go on past them.
    pub ignore_eos: bool,
    /// Tokens that this request wants to stop at.
    pub token_ids: Vec<u32>,
    /// Texts that this request wants to stop at, wherever token boundaries fall. The one that ends first wins, and of
    /// those that end together the longest.
    pub strings: Vec<String>,
    /// Whether the text or the token of [`StopRules::token_ids`] that stopped the answer is part of its text.
    pub include_stop_str: bool,
    /// A stop string counts only if it ends in the text of a later token than the first so many. (Stop tokens are
    /// masked: see [`crate::SamplingParams::min_tokens`].)
    pub min_tokens: usize,
    /// The most tokens of the answer.
    pub max_tokens: usize,
    /// Whether special tokens are part of the text. (The token that ends the answer is not, but a stop token is with
    /// [`StopRules::include_stop_str`].)
    pub special_tokens: bool,
}

impl Default for StopRules {
    fn default() -> Self {
        Self {
            eos: Vec::new(),
            ignore_eos: false,
            token_ids: Vec::new(),
            strings: Vec::new(),
            include_stop_str: false,
            min_tokens: 0,
            max_tokens: usize::MAX,
            special_tokens: false,
        }
    }
}

impl StopRules {
    /// Check everything against a vocabulary, before the request is admitted.
    ///
    /// # Errors
    /// [`ParamError`], naming the field.
    pub fn validate(&self, vocab: usize) -> Result<(), ParamError> {
        for (name, ids) in [("eos", &self.eos), ("stop token_ids", &self.token_ids)] {
            if let Some(&id) = ids.iter().find(|id| **id as usize >= vocab) {
                return Err(ParamError::TokenOutOfRange { name, id, vocab });
            }
        }
        if self.strings.iter().any(String::is_empty) {
            return Err(ParamError::EmptyStop);
        }
        if self.min_tokens > self.max_tokens {
            let got = self.min_tokens as f64;
            let (name, expected) = ("min_tokens", "at most max_tokens");
            return Err(ParamError::OutOfRange { name, expected, got });
        }
        Ok(())
    }

    /// The tokens that end the answer, each once: what [`crate::Row::ends`] wants to know, so that none of them is
    /// chosen before `min_tokens`.
    pub fn ends(&self) -> Vec<u32> {
        let eos: &[u32] = if self.ignore_eos { &[] } else { &self.eos };
        let mut ends = [eos, &self.token_ids].concat();
        ends.sort_unstable();
        ends.dedup();
        ends
    }

    /// Why this token ends the answer, if it does.
    fn token(&self, token: u32) -> Option<StopReason> {
        if !self.ignore_eos && self.eos.contains(&token) {
            return Some(StopReason::Eos(token));
        }
        self.token_ids.contains(&token).then_some(StopReason::Token(token))
    }
}

/// Why an answer ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StopReason {
    /// The model said that it is done.
    Eos(u32),
    /// A token of [`StopRules::token_ids`].
    Token(u32),
    /// A text of [`StopRules::strings`].
    Text(String),
    /// The guide allows no more.
    Guide,
    /// `max_tokens`, or the end of the context.
    Length,
    /// Whoever receives the text had enough.
    Receiver,
}

impl StopReason {
    /// As in OpenAI's API, which has two words for it.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Length => "length",
            _ => "stop",
        }
    }
}
