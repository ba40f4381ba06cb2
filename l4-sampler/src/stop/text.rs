//! The text of output tokens, decoded as they are sampled.

use l2_model::tokenizer::{Detokenizer, Tokenizer};

/// The text of output tokens, decoded as they are sampled. Without a tokenizer there is no text.
#[derive(Clone, Debug)]
pub struct TextStream {
    /// Decoder of the tokens; `None` without a tokenizer, and after the end.
    detokenizer: Option<Detokenizer>,
    /// Text that the detokenizer would release if the prompt ended the text. If the next text begins with it, it
    /// belongs to the prompt and is removed.
    held: String,
}

impl TextStream {
    /// Creates a stream whose text is decoded as a text of its own, as in a chat. `special`: whether special tokens are
    /// part of the text.
    pub fn answering(tokenizer: Option<&Tokenizer>, special: bool) -> Self {
        Self { detokenizer: tokenizer.map(|t| t.detokenizer(!special)), held: String::new() }
    }

    /// Creates a stream whose text continues `prompt`: the prompt's text and the stream's, joined, are the text of all
    /// tokens decoded together. (A SentencePiece tokenizer drops the space before the first word of a text, so the
    /// output cannot be decoded alone.)
    pub fn continuing(tokenizer: Option<&Tokenizer>, prompt: &[u32], special: bool) -> Self {
        let mut stream = Self::answering(tokenizer, special);
        for id in prompt {
            stream.push(*id);
        }
        stream.held = stream.detokenizer.clone().map(Detokenizer::finish).unwrap_or_default();
        stream
    }

    /// Adds a token and returns the text that is certain with it. Special tokens have no text unless they are part of
    /// it, and neither have rows of the embedding without a token.
    pub fn push(&mut self, id: u32) -> &str {
        let text = self.detokenizer.as_mut().and_then(|d| d.push(id).ok()).unwrap_or_default();
        without(&mut self.held, text)
    }

    /// Ends the stream and returns the text that was held back.
    pub fn finish(&mut self) -> String {
        let text = self.detokenizer.take().map(Detokenizer::finish).unwrap_or_default();
        without(&mut self.held, &text).to_owned()
    }
}

/// Removes the prompt's text from the front of `text`. If the new token completes a character that the prompt began,
/// nothing is removed.
fn without<'a>(held: &mut String, text: &'a str) -> &'a str {
    if text.is_empty() || held.is_empty() {
        return text;
    }
    let held = std::mem::take(held);
    text.strip_prefix(held.as_str()).unwrap_or(text)
}
