//! Converts prompts of the command line to token ids.

use std::io::Read;

use l2_model::Error;
use l2_model::chat_template::{ChatTemplate, Message};
use l2_model::tokenizer::Tokenizer;

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

/// Tokenizes a text prompt, with the special tokens that the model expects around it (mostly BOS).
///
/// # Errors
/// [`Error::EmptyPrompt`], even if the tokenizer would add a BOS; [`Error::Tokenizer`].
pub fn plain(tokenizer: &Tokenizer, text: &str) -> Result<Vec<u32>, Error> {
    if text.is_empty() {
        return Err(Error::EmptyPrompt);
    }
    Ok(tokenizer.encode(text, true)?)
}

/// Tokenizes a conversation, with the chat template. Most templates write the BOS themselves; it is added only if it is
/// missing, so there is never a second one.
///
/// # Errors
/// [`Error::ChatTemplate`] for messages that the template rejects, [`Error::Tokenizer`].
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
