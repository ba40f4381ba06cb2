//! Choices of the same prompt: vLLM counts `n`, and the longest of the choices, once for all of them.

use super::buckets;
use super::registry::{Histogram, Registry};

/// Metrics of choices, with the label `engine` of one replica.
#[derive(Clone, Debug)]
pub struct ChoiceFamilies {
    n: Histogram,
    longest: Histogram,
}

/// Choices of one HTTP request in flight. They are counted when this is dropped, whether they finished or not.
#[derive(Debug)]
pub struct ChoiceMetrics {
    families: ChoiceFamilies,
    /// Index of each choice among those of its prompt.
    samples: Vec<u32>,
    /// Tokens of each choice.
    tokens: Vec<usize>,
}

impl ChoiceFamilies {
    /// Registers all of them, at 0.
    pub fn new(registry: &Registry, model: &str, engine: &str, max_model_len: usize) -> Self {
        let own: &[(&str, &str)] = &[("model_name", model), ("engine", engine)];
        let n = "Number of choices requested for each prompt (n).";
        let longest = "Maximum number of generation tokens among the choices of each prompt.";
        let lengths = buckets::tokens(max_model_len);
        Self {
            n: registry.histogram("vllm:request_params_n", n, buckets::N, own),
            longest: registry.histogram(
                "vllm:request_max_num_generation_tokens",
                longest,
                &lengths,
                own,
            ),
        }
    }

    /// Begins to count choices. A sample 0 begins another prompt.
    pub fn begin(&self, samples: Vec<u32>) -> ChoiceMetrics {
        ChoiceMetrics { families: self.clone(), tokens: vec![0; samples.len()], samples }
    }
}

impl ChoiceMetrics {
    /// Another replica serves the choices.
    pub fn move_to(&mut self, families: ChoiceFamilies) {
        self.families = families;
    }

    /// Counts new tokens of a choice.
    pub fn count(&mut self, at: usize, tokens: usize) {
        if let Some(sum) = self.tokens.get_mut(at) {
            *sum += tokens;
        }
    }
}

impl Drop for ChoiceMetrics {
    fn drop(&mut self) {
        let choices: Vec<_> = self.samples.iter().zip(&self.tokens).collect();
        for prompt in choices.chunk_by(|_, (sample, _)| **sample > 0) {
            let longest = prompt.iter().map(|(_, tokens)| **tokens).max().unwrap_or(0);
            self.families.n.observe(prompt.len() as f64);
            self.families.longest.observe(longest as f64);
        }
    }
}
