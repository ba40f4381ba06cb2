//! Answers to the same prompt: vLLM counts `n`, and the longest of the answers, once for all of them.

use super::buckets;
use super::registry::{Histogram, Registry};

/// What is counted of them.
#[derive(Clone, Debug)]
pub struct GroupFamilies {
    n: Histogram,
    longest: Histogram,
}

/// Answers to one HTTP request that are under way. Dropped, they are counted, as far as they came.
#[derive(Debug)]
pub struct Groups {
    families: GroupFamilies,
    /// Which of a prompt's answers each is.
    samples: Vec<u32>,
    /// Tokens of each answer.
    tokens: Vec<usize>,
}

impl GroupFamilies {
    /// None yet.
    pub fn new(registry: &Registry, model: &str, max_model_len: usize) -> Self {
        let own: &[(&str, &str)] = &[("model_name", model), ("engine", "0")];
        let n = "Answers that were asked for, of each prompt.";
        let longest = "Tokens of the longest answer to each prompt.";
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

    /// These have begun. Where samples begin again at 0, so does another prompt.
    pub fn begin(&self, samples: Vec<u32>) -> Groups {
        Groups { families: self.clone(), tokens: vec![0; samples.len()], samples }
    }
}

impl Groups {
    /// So many tokens of an answer came.
    pub fn came(&mut self, at: usize, tokens: usize) {
        if let Some(sum) = self.tokens.get_mut(at) {
            *sum += tokens;
        }
    }
}

impl Drop for Groups {
    fn drop(&mut self) {
        let answers: Vec<_> = self.samples.iter().zip(&self.tokens).collect();
        for prompt in answers.chunk_by(|_, (sample, _)| **sample > 0) {
            let longest = prompt.iter().map(|(_, tokens)| **tokens).max().unwrap_or(0);
            self.families.n.observe(prompt.len() as f64);
            self.families.longest.observe(longest as f64);
        }
    }
}
