//! One prompt, one or more answers: all of this floor at work, until a scheduler does it for many.
//!
//! ```text
//! prefill   the prompt, once, in slot 0; its last row of logits is where every answer begins
//! choose    the first token of each answer, all from that one row
//! share     the other slots get the prompt: blocks of the cache, or a copy
//! repeat    one batch with what each answer has to feed -> a row of logits each -> a token each
//! ```
//!
//! Answers differ only in the number they are as a sample, which keys their random numbers. So each is what it would be
//! alone, and an answer that ends leaves the batch without the others noticing.

mod answer;
mod generator;
mod run;
mod step;

use std::time::Duration;

pub use generator::Generator;

use crate::guide::Guide;
use crate::stop::{StopReason, StopRules};
use crate::{SamplingParams, TokenLogprobs};

/// What is asked of a prompt.
#[derive(Clone, Copy)]
pub struct Request<'a> {
    /// The prompt, as token ids.
    pub prompt: &'a [u32],
    /// How to choose.
    pub params: &'a SamplingParams,
    /// When to end.
    pub stop: &'a StopRules,
    /// What the answers must look like; each follows its own copy.
    pub guide: Option<&'a Guide>,
    /// Answers to return.
    pub n: usize,
    /// Answers to generate, the `n` of the highest mean log probability being returned, best first; 0 means `n`.
    pub best_of: usize,
    /// Of all random numbers.
    pub seed: u64,
    /// The number of the first answer as a sample, the others count on from it: 0, unless one answer of several is to
    /// be had again alone.
    pub first_sample: usize,
    /// Whether the text of an answer continues the prompt's, so that both joined read as decoded together, or stands for
    /// itself as in a chat. (A SentencePiece tokenizer drops the space before the first word of a text.)
    pub continues: bool,
}

impl<'a> Request<'a> {
    /// One answer that stands for itself, without a guide, from seed 0.
    pub fn new(prompt: &'a [u32], params: &'a SamplingParams, stop: &'a StopRules) -> Self {
        Self {
            prompt,
            params,
            stop,
            guide: None,
            n: 1,
            best_of: 0,
            seed: 0,
            first_sample: 0,
            continues: false,
        }
    }
}

/// One answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Choice {
    /// Its number as a sample: what its random numbers are keyed by.
    pub sample: usize,
    /// Its tokens, one that stopped it included.
    pub tokens: Vec<u32>,
    /// Its text, without a stop string unless that was asked for.
    pub text: String,
    /// Why it ended.
    pub reason: StopReason,
    /// One entry for each token, if asked for.
    pub logprobs: Vec<TokenLogprobs>,
}

/// What came of a request.
#[derive(Clone, Debug)]
pub struct Generation {
    /// The answers, in the order of their samples or, of `best_of`, the best first.
    pub choices: Vec<Choice>,
    /// What went through the model.
    pub work: Work,
    /// From the call to the first token of every answer.
    pub prefill: Duration,
    /// From there to the last token.
    pub decode: Duration,
}

/// Tokens that went through the model for a request, and how often it ran.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// Tokens of the prompt that the state still had, of an earlier request or turn.
    pub prompt_cached: usize,
    /// Tokens of the prompt that were computed. With several answers over blocks these are a few more than the prompt has:
    /// what lies in its last, unfinished block is computed for each answer.
    pub prompt_computed: usize,
    /// Tokens of answers that were fed back, those of dropped answers included.
    pub answer_tokens: usize,
    /// Tokens of answers that a guide left no choice about, so that none was sampled.
    pub forced_tokens: usize,
    /// Forward passes.
    pub steps: usize,
}
