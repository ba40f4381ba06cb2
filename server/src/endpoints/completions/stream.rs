//! Completions as a stream: an object for each new output of any choice.

use axum::body::Bytes;

use super::format::{Format, Progress};
use super::prompts::Prompt;
use crate::choices::{ChoiceDelta, StreamFormat};
use crate::protocol::common::Usage;
use crate::sse;

/// The objects of a stream.
pub struct Objects {
    format: Format,
    prompts: Vec<Prompt>,
    /// Number of choices of each prompt.
    n: usize,
    /// Progress of each choice.
    progress: Vec<Progress>,
}

impl Objects {
    /// Formats `n` choices of each prompt.
    pub(super) fn new(format: Format, prompts: Vec<Prompt>, n: u32) -> Self {
        let n = (n as usize).max(1);
        let progress = vec![Progress::default(); prompts.len() * n];
        Self { format, prompts, n, progress }
    }
}

impl StreamFormat for Objects {
    fn delta(&mut self, delta: ChoiceDelta) -> Bytes {
        let Self { format, prompts, n, progress } = self;
        let Some(progress) = progress.get_mut(delta.index) else { return Bytes::new() };
        let prompt = prompts.get(delta.index / *n);
        let (choice, usage) = format.choice(prompt, progress, delta);
        // With `include_usage` every object has the field: null until the end, unless usage is continuous.
        let now = format.continuous_usage.then_some(usage);
        let usage = format.include_usage.then_some(now);
        sse::event(&format.completion(vec![choice], usage))
    }

    fn end(&mut self, usage: Usage) -> Bytes {
        if !self.format.include_usage {
            return Bytes::new();
        }
        sse::event(&self.format.completion(Vec::new(), Some(Some(usage))))
    }
}
