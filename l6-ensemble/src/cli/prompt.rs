//! From what was typed to token ids, and from new ids to text.

use std::io::Read;

use l2_model::Error;
use l2_model::chat_template::{ChatTemplate, Message};
use l2_model::tokenizer::{Detokenizer, Tokenizer};

use super::error::CliError;

/// The text of an argument: itself, or all of stdin for `-`, to the last byte.
///
/// # Errors
/// [`CliError::Input`], also for a stdin that is not UTF-8.
pub fn text_of(argument: &str) -> Result<String, CliError> {
    if argument != "-" {
        return Ok(argument.to_owned());
    }
    let mut text = String::new();
    let read = std::io::stdin().lock().read_to_string(&mut text);
    read.map_err(|reason| CliError::Input { what: "the text on stdin".into(), reason })?;
    Ok(text)
}

/// Text that the model shall continue, with what it expects around a text of its own (BOS, mostly).
///
/// # Errors
/// [`Error::EmptyPrompt`], also where a BOS would stand there alone; [`Error::Tokenizer`].
pub fn plain(tokenizer: &Tokenizer, text: &str) -> Result<Vec<u32>, Error> {
    if text.is_empty() {
        return Err(Error::EmptyPrompt);
    }
    Ok(tokenizer.encode(text, true)?)
}

/// A conversation that the model shall answer. Most templates write the BOS themselves; it is put before the rest
/// only where it is missing, so there is never a second one.
///
/// # Errors
/// [`Error::ChatTemplate`] for messages the template does not take, [`Error::Tokenizer`].
pub fn chat(
    tokenizer: &Tokenizer,
    template: &ChatTemplate,
    messages: &[Message],
) -> Result<Vec<u32>, Error> {
    let text = template.render(messages, true, &serde_json::Map::new())?;
    let ids = tokenizer.encode(&text, false)?;
    let prefix = tokenizer.prefix();
    if ids.starts_with(prefix) { Ok(ids) } else { Ok([prefix, &ids].concat()) }
}

/// The chat template of a model that must have one.
///
/// # Errors
/// [`CliError::NoChatTemplate`]; [`Error::ChatTemplate`] for one that does not parse.
pub fn template(tokenizer: &Tokenizer, model: &str) -> anyhow::Result<ChatTemplate> {
    let template = l2_model::chat_template(tokenizer)?;
    Ok(template.ok_or_else(|| CliError::NoChatTemplate { model: model.to_owned() })?)
}

/// The text of new tokens, as they come.
pub struct TextStream {
    detokenizer: Option<Detokenizer>,
    /// What the prompt alone would have ended with, held back until the next token confirms it: it is not new.
    held: String,
}

impl TextStream {
    /// Text that continues `prompt`: joined to the prompt's text, it reads as both decoded together. (A SentencePiece
    /// tokenizer drops the space before the first word of a text. The first new word is not that.)
    pub fn continuing(tokenizer: Option<&Tokenizer>, prompt: &[u32]) -> Self {
        let mut stream = Self::answering(tokenizer);
        for id in prompt {
            stream.push(*id);
        }
        stream.held = stream.detokenizer.clone().map(Detokenizer::finish).unwrap_or_default();
        stream
    }

    /// Text that stands for itself, as an answer does.
    pub fn answering(tokenizer: Option<&Tokenizer>) -> Self {
        Self { detokenizer: tokenizer.map(|t| t.detokenizer(true)), held: String::new() }
    }

    /// The text that is certain after this token. Special tokens have none, and neither have ids that the embedding
    /// has room for and the tokenizer no word.
    pub fn push(&mut self, id: u32) -> &str {
        let text = self.detokenizer.as_mut().and_then(|d| d.push(id).ok()).unwrap_or_default();
        without(&mut self.held, text)
    }

    /// What was held back for a token that did not come.
    pub fn finish(mut self) -> String {
        let text = self.detokenizer.map(Detokenizer::finish).unwrap_or_default();
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
