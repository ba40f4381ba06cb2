//! One prompt, one or more choices, on the caller's thread.
//!
//! [`Generator`] is a shell over [`EngineCore`](crate::EngineCore): it validates a request, adds its choices, runs
//! steps until they have ended, and hands their text on between two steps. Scheduler, runner and the state of each
//! choice are those that a server's engine has, so a request has the same tokens and log probabilities in both.
//!
//! ```text
//! run       validate -> add n choices -> step, on_text, step, on_text, .. -> rank -> Generation
//! sharing   choice 0 computes the prompt; the others find its full blocks in the prefix cache
//! turns     so does the next request: a turn of a conversation costs what is new
//! ```

mod generator;
mod receiver;

use std::time::Duration;

use l4_sampler::TokenLogprobs;
use l4_sampler::stop::StopReason;

pub use generator::{GenerateError, Generator};

use crate::{DraftCounts, EngineRequest, FinishReason};

/// A request for one or more choices.
#[derive(Clone, Debug)]
pub struct GenerateRequest {
    /// Prompt, parameters, stops, guide and seed. Its `sample` is the number of the first choice.
    pub request: EngineRequest,
    /// Number of choices to return.
    pub n: usize,
    /// Number of choices to generate; the `n` with the highest mean log probability are returned, best first. 0 means
    /// `n`.
    pub best_of: usize,
}

impl From<EngineRequest> for GenerateRequest {
    fn from(request: EngineRequest) -> Self {
        Self { request, n: 1, best_of: 0 }
    }
}

/// One choice.
#[derive(Clone, Debug, PartialEq)]
pub struct Choice {
    /// Number of the choice among those of the request: it keys the random numbers.
    pub sample: usize,
    /// Output tokens; the last may be the one that ended the output.
    pub tokens: Vec<u32>,
    /// Output text; a stop string is part of it only if `include_stop_str` is set.
    pub text: String,
    /// Finish reason.
    pub finish: FinishReason,
    /// Stop reason, if the output itself ended the choice.
    pub stop: Option<StopReason>,
    /// Log probabilities, one entry for each token, if requested.
    pub logprobs: Vec<TokenLogprobs>,
}

/// The result of a request.
#[derive(Clone, Debug)]
pub struct Generation {
    /// The choices, in the order of their numbers or, of `best_of`, the best first.
    pub choices: Vec<Choice>,
    /// Output tokens of all choices, those that `best_of` dropped included.
    pub output_tokens: usize,
    /// Tokens that were computed.
    pub work: Work,
    /// Drafts of all choices, where the engine speculates.
    pub drafts: DraftCounts,
    /// Time from the call to the first token of every choice.
    pub prefill: Duration,
    /// Time from there to the last token.
    pub decode: Duration,
}

/// Tokens that were computed for a request, and the number of steps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// Tokens of the prompt that the first choice found in the prefix cache, left by an earlier request or turn.
    pub prompt_cached: usize,
    /// Tokens of the prompt that were computed. With several choices these are more than the prompt has: what lies
    /// behind its last full block is computed for each choice.
    pub prompt_computed: usize,
    /// Output tokens that were computed, those of choices that `best_of` dropped included. The last token of a choice
    /// never is, and rejected drafts are not output.
    pub output_computed: usize,
    /// Number of forward passes.
    pub steps: usize,
    /// Number of rows that sampled, of all steps: each brought one token of a choice or, with drafts, several.
    pub sampling_rows: usize,
}

/// Sorts choices for `best_of`, the best first, by the [`mean_logprob`] of what `of` returns. Choices for which it returns
/// `None`, failed ones, are last. The sort is stable: choices of equal rank stay in order.
pub fn rank<T>(choices: &mut [T], of: impl Fn(&T) -> Option<&[TokenLogprobs]>) {
    choices.sort_by(|a, b| match (of(a), of(b)) {
        (Some(a), Some(b)) => mean_logprob(b).total_cmp(&mean_logprob(a)),
        (a, b) => b.is_some().cmp(&a.is_some()),
    });
}

/// Mean log probability of a choice's tokens, by which `best_of` ranks. It is a mean, since a sum prefers short
/// outputs; `logprobs` should be raw ones, since a temperature makes all outputs look alike.
pub fn mean_logprob(logprobs: &[TokenLogprobs]) -> f64 {
    let sum: f64 = logprobs.iter().map(|token| f64::from(token.logprob)).sum();
    sum / logprobs.len().max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choices_are_ranked_by_their_mean_and_failed_ones_are_last() {
        let tokens = |logprobs: &[f32]| {
            let one = |logprob: &f32| TokenLogprobs { logprob: *logprob, ..Default::default() };
            logprobs.iter().map(one).collect::<Vec<_>>()
        };
        let mut choices = [
            (0, None),
            (1, Some(tokens(&[-2.0]))),
            (2, None),
            (3, Some(tokens(&[-1.0, -1.5]))),
            (4, Some(tokens(&[-2.0, -2.0]))),
        ];
        rank(&mut choices, |(_, logprobs)| logprobs.as_deref());
        assert_eq!(choices.map(|(number, _)| number), [3, 1, 4, 0, 2]);
    }
}
