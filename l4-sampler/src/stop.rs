//! When an answer ends, and what of its text may be shown already.

use crate::error::ParamError;

/// What ends one request's answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StopRules {
    /// The model's own end tokens (end of sequence, end of turn).
    pub eos: Vec<u32>,
    /// Go on past them.
    pub ignore_eos: bool,
    /// Tokens that this request wants to stop at.
    pub token_ids: Vec<u32>,
    /// Texts that this request wants to stop at, wherever token boundaries fall.
    pub strings: Vec<String>,
    /// Whether what stopped the answer is part of its text.
    pub include_stop_str: bool,
    /// No stop string is looked for in the text of the first so many tokens. (Stop tokens are masked: see
    /// [`crate::SamplingParams::min_tokens`].)
    pub min_tokens: usize,
    /// The most tokens of the answer.
    pub max_tokens: usize,
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

/// Finds stop strings in text that comes in pieces. What could become a stop string is held back, so that no part of one
/// is ever shown.
#[derive(Clone, Debug)]
pub struct StopMatcher {}

impl StopMatcher {
    /// A matcher for these texts.
    ///
    /// # Errors
    /// [`ParamError::EmptyStop`].
    pub fn new(strings: &[String], include_stop_str: bool) -> Result<Self, ParamError> {
        let _ = (strings, include_stop_str);
        todo!()
    }
    // push(&mut self, text: &str) -> &str : what may be shown; stopped(&self) -> Option<usize>; finish(&mut self) -> &str
}
