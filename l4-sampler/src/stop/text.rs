//! The text of new tokens, as it comes.

use l2_model::tokenizer::{Detokenizer, Tokenizer};

/// The text of new tokens, as it comes; of none where there is no tokenizer.
#[derive(Clone, Debug)]
pub struct TextStream {
    /// None without a tokenizer, and after the end.
    detokenizer: Option<Detokenizer>,
    /// What the prompt alone would have ended with, held back until the next token confirms it: it is not new.
    held: String,
}

impl TextStream {
    /// Text that stands for itself, as an answer does. `special`: special tokens are part of it.
    pub fn answering(tokenizer: Option<&Tokenizer>, special: bool) -> Self {
        Self { detokenizer: tokenizer.map(|t| t.detokenizer(!special)), held: String::new() }
    }

    /// Text that continues `prompt`: joined to the prompt's text, it reads as both decoded together. (A SentencePiece
    /// tokenizer drops the space before the first word of a text. The first new word is not that.)
    pub fn continuing(tokenizer: Option<&Tokenizer>, prompt: &[u32], special: bool) -> Self {
        let mut stream = Self::answering(tokenizer, special);
        for id in prompt {
            stream.push(*id);
        }
        stream.held = stream.detokenizer.clone().map(Detokenizer::finish).unwrap_or_default();
        stream
    }

    /// The text that is certain with this token. Special tokens have none unless they are part of the text, and neither
    /// have ids that the embedding has room for and the tokenizer no word.
    pub fn push(&mut self, id: u32) -> &str {
        let text = self.detokenizer.as_mut().and_then(|d| d.push(id).ok()).unwrap_or_default();
        without(&mut self.held, text)
    }

    /// No more tokens come: what was held back for them.
    pub fn finish(&mut self) -> String {
        let text = self.detokenizer.take().map(Detokenizer::finish).unwrap_or_default();
        without(&mut self.held, &text).to_owned()
    }
}

/// `text` without what of it is the prompt's. Where the new token completes a character that the prompt began, all of
/// it is new.
fn without<'a>(held: &mut String, text: &'a str) -> &'a str {
    if text.is_empty() || held.is_empty() {
        return text;
    }
    let held = std::mem::take(held);
    text.strip_prefix(held.as_str()).unwrap_or(text)
}
