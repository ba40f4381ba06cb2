//! One prompt, one or more answers: all of this floor at work, until a scheduler does it for many.

use l1_tensor::Runtime;
use l2_model::tokenizer::Tokenizer;
use l2_model::{Decoder, SequenceState};

use crate::guide::Guide;
use crate::stop::{StopReason, StopRules};
use crate::{Result, SamplingParams, TokenLogprobs};

/// What is asked of a prompt.
pub struct Request<'a> {
    /// The prompt, as token ids.
    pub prompt: &'a [u32],
    /// How to choose.
    pub params: &'a SamplingParams,
    /// When to end.
    pub stop: &'a StopRules,
    /// What the answers must look like; each choice follows its own copy.
    pub guide: Option<&'a Guide>,
    /// Answers to return.
    pub n: usize,
    /// Answers to generate, the `n` of the highest mean log probability being returned; 0 means `n`.
    pub best_of: usize,
    /// Of all random numbers.
    pub seed: u64,
}

/// One answer.
#[derive(Clone, Debug)]
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

/// Generates answers with a model and the memory of one or more sequences.
pub struct Generator<'m> {
    _decoder: &'m Decoder,
}

impl<'m> Generator<'m> {
    /// A generator over `slots` empty slots of a state that takes sequences of `max_len` tokens. `tokenizer` turns tokens
    /// to text; without one there is no text, and no stop strings.
    ///
    /// # Errors
    /// No memory for the buffers.
    pub fn new(
        decoder: &'m Decoder,
        tokenizer: Option<&Tokenizer>,
        rt: &Runtime,
        state: Box<dyn SequenceState + 'm>,
        slots: usize,
        max_len: usize,
    ) -> Result<Self> {
        let _ = (decoder, tokenizer, rt, state, slots, max_len);
        todo!()
    }

    /// Answer. `on_text` gets the text of each choice as it becomes certain (choice, text) and says whether to go on.
    ///
    /// # Errors
    /// What model, sampler and guide report; nothing is left in the state then.
    pub fn run(
        &mut self,
        request: &Request<'_>,
        on_text: impl FnMut(usize, &str) -> bool,
    ) -> Result<Vec<Choice>> {
        let _ = (request, on_text);
        todo!()
    }
}
