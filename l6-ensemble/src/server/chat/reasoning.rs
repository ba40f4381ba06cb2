//! Telling a model's thoughts from its answer.
//!
//! Models that think write `<think>` ... `</think>` before they answer; some templates write the opening tag into the
//! prompt, so that an answer begins in the midst of a thought.

/// How a model sets its thoughts apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReasoningFormat {
    /// It does not.
    #[default]
    None,
    /// `<think>` and `</think>`.
    ThinkTags,
}

impl ReasoningFormat {
    /// What a chat template shows of it.
    pub fn detect(template: &str) -> Self {
        if template.contains("</think>") { Self::ThinkTags } else { Self::None }
    }
}

/// A piece of text, told apart.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Split {
    /// What is thought.
    pub reasoning: String,
    /// What is said.
    pub content: String,
}

/// Tells thoughts from answer in text that comes in pieces.
#[derive(Clone, Debug)]
pub struct ReasoningParser {
    format: ReasoningFormat,
}

impl ReasoningParser {
    /// For one answer to `prompt`, whose end tells whether the answer begins within a thought.
    pub fn new(format: ReasoningFormat, prompt: &str) -> Self {
        let _ = prompt;
        Self { format }
    }

    /// The next piece of text. What could still become a tag is held back.
    pub fn push(&mut self, text: &str) -> Split {
        let _ = self.format;
        Split { reasoning: String::new(), content: text.to_owned() }
    }

    /// There is no more text: what was held back is what it looks like.
    pub fn finish(&mut self) -> Split {
        Split::default()
    }
}
