//! Greedy generation of one sequence.

use crate::Model;
use crate::ops::argmax;

/// What was generated, and what it took.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Generation {
    /// Output tokens, the stop token included if there was one.
    pub tokens: Vec<u32>,
    /// Number of forward passes of one token.
    pub passes: usize,
}

/// Generates up to `max_tokens` tokens behind a prompt, each the one with the largest logit. A stop token is the last one.
///
/// Keys and values of all tokens are kept, so every token of the prompt and of the output is computed once. The last output
/// token is not computed: nothing follows it.
///
/// `prompt` is not empty.
pub fn generate(model: &Model, prompt: &[u32], max_tokens: usize, stop: &[u32]) -> Generation {
    let mut kv = model.kv_memory(prompt.len() + max_tokens);
    let slots: Vec<usize> = (0..kv.slots()).collect();
    let mut generation = Generation { tokens: Vec::new(), passes: 0 };
    // exercise nano.generate
    let mut logits = Vec::new();
    for token in prompt {
        generation.passes += 1;
        logits = model.forward(*token, &slots[..generation.passes], &mut kv);
    }
    while generation.tokens.len() < max_tokens {
        let next = argmax(&logits) as u32;
        generation.tokens.push(next);
        if stop.contains(&next) || generation.tokens.len() == max_tokens {
            break;
        }
        generation.passes += 1;
        logits = model.forward(next, &slots[..generation.passes], &mut kv);
    }
    // end of exercise
    generation
}

/// The same without a KV cache: for each output token, all tokens before it are computed again. The tokens are the same.
pub fn generate_without_cache(
    model: &Model,
    prompt: &[u32],
    max_tokens: usize,
    stop: &[u32],
) -> Generation {
    let mut sequence = prompt.to_vec();
    let mut generation = Generation { tokens: Vec::new(), passes: 0 };
    while generation.tokens.len() < max_tokens {
        let again = generate(model, &sequence, 1, stop);
        generation.passes += again.passes;
        generation.tokens.extend(&again.tokens);
        sequence.extend(&again.tokens);
        if again.tokens.iter().any(|token| stop.contains(token)) {
            break;
        }
    }
    generation
}
