//! Stop conditions: when an output ends, and which part of its text can be shown already.
//!
//! A stop string may begin in the middle of one token and end in the middle of the third after it. When it is complete,
//! no part of it may have been shown to the client. So text is held back exactly as long as it could still become a
//! stop string:
//!
//! * [`StopRules`]: the stop conditions of a request;
//! * [`TextStream`]: the text of tokens as they are sampled;
//! * [`StopMatcher`]: finds stop strings in streamed text;
//! * [`AnswerStream`]: one output as it is generated: tokens in, text and at last a [`StopReason`] out.

mod answer;
mod automaton;
mod matcher;
mod text;

pub use answer::AnswerStream;
pub use matcher::StopMatcher;
pub use text::TextStream;

use crate::error::ParamError;

/// Stop conditions of a request. [`Default`] has none: only the end of the context ends the output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StopRules {
    /// The model's own end tokens (end of sequence, end of turn).
    pub eos: Vec<u32>,
    /// Whether to ignore those end tokens.
    pub ignore_eos: bool,
    /// Stop tokens of the request.
    pub token_ids: Vec<u32>,
    /// Stop strings of the request, found wherever token boundaries fall. The one that ends first wins, and of those
    /// that end together the longest.
    pub strings: Vec<String>,
    /// Whether the stop string or stop token that ended the output is part of its text.
    pub include_stop_str: bool,
    /// Number of output tokens in whose text no stop string may end. (Stop tokens are masked: see
    /// [`crate::SamplingParams::min_tokens`].)
    pub min_tokens: usize,
    /// Maximum number of output tokens.
    pub max_tokens: usize,
    /// Whether special tokens are part of the text. (The token that ends the output is not, except a stop token with
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
    /// Checks all rules against a vocabulary, before the request is admitted.
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

    /// Tokens that end the output, each once: for [`crate::Row::ends`], so that none of them is sampled before
    /// `min_tokens`.
    pub fn ends(&self) -> Vec<u32> {
        let eos: &[u32] = if self.ignore_eos { &[] } else { &self.eos };
        let mut ends = [eos, &self.token_ids].concat();
        ends.sort_unstable();
        ends.dedup();
        ends
    }

    /// Stop reason of a token, if it ends the output.
    fn token(&self, token: u32) -> Option<StopReason> {
        if !self.ignore_eos && self.eos.contains(&token) {
            return Some(StopReason::Eos(token));
        }
        self.token_ids.contains(&token).then_some(StopReason::Token(token))
    }
}

/// Why an output ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StopReason {
    /// The model sampled an end token.
    Eos(u32),
    /// A stop token, one of [`StopRules::token_ids`].
    Token(u32),
    /// A stop string, one of [`StopRules::strings`].
    Text(String),
    /// The guide allows no further token.
    Guide,
    /// `max_tokens`, or the end of the context.
    Length,
    /// The receiver of the text stopped the output.
    Receiver,
}

impl StopReason {
    /// `finish_reason` of OpenAI's API: `stop` or `length`.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Length => "length",
            _ => "stop",
        }
    }
}
