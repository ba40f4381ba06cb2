//! Renders a conversation to the tokens of a prompt.
//!
//! Messages have the format of OpenAI's clients, and are converted to that of templates: parts become one text, the
//! arguments of calls become objects (of a call that was cut off, they stay text), `developer` becomes `system` where
//! the template knows no developers.

use std::cell::Cell;
use std::collections::HashSet;

use l2_model::chat_template::Message;
use serde_json::{Map, Value};

use crate::error::{ApiError, quoted};
use crate::json::tree;
use crate::model::ServedModel;
use crate::protocol::chat::{ChatMessage, Content, ContentPart, Tool};

/// Marker behind a message that is continued, by which its end is found in the rendered prompt: two characters of
/// Unicode's private use, which no text has by accident.
const OPEN_END: &str = "\u{f8c3}\u{f8c4}";

/// Inputs of a chat template beside the messages.
#[derive(Clone, Debug, Default)]
pub struct Rendering<'a> {
    /// Tools that the model may call.
    pub tools: &'a [Tool],
    /// Variables of the template.
    pub variables: Map<String, Value>,
    /// Whether the header of the assistant's message is added.
    pub add_generation_prompt: bool,
    /// Whether the last message is continued by the completion.
    pub continue_final_message: bool,
}

/// Renders the text of a prompt by the model's chat template.
///
/// # Errors
/// [`ApiError`]: no template, parts that are not text, a conversation that the template rejects.
pub fn render(
    model: &ServedModel,
    messages: &[ChatMessage],
    rendering: &Rendering<'_>,
) -> Result<String, ApiError> {
    let Some(template) = &model.template else {
        let message = "This model has no chat template. Use /v1/completions, or start the server with --chat-template.";
        return Err(ApiError::invalid(message).with_code("no_chat_template"));
    };
    if messages.is_empty() {
        return Err(ApiError::param("messages", "`messages` must have at least 1 message"));
    }
    // Arguments of calls are values within texts, and count as those of a body.
    tree::reset_limit();
    let last = messages.len() - 1;
    let broken = Cell::new(false);
    let read = |calls: BrokenCalls| {
        let message = |(at, message): (usize, &ChatMessage)| {
            let open = rendering.continue_final_message && at == last;
            self::message(model, at, message, open, calls, &broken)
        };
        messages.iter().enumerate().map(message).collect::<Result<Vec<_>, _>>()
    };
    let written = read(BrokenCalls::AsText)?;
    let mut variables = rendering.variables.clone();
    // Fields of the request take precedence over variables of the same name.
    variables.remove("messages");
    if !rendering.tools.is_empty() {
        let tools = serde_json::to_value(rendering.tools);
        variables.insert("tools".into(), tools.map_err(|e| ApiError::internal(e.to_string()))?);
    }
    let render = |messages: &[Message]| {
        template.render(messages, rendering.add_generation_prompt, &variables)
    };
    let mut text = render(&written);
    if text.is_err() && broken.get() {
        // The template iterates over the arguments, and a text is not iterable.
        text = render(&read(BrokenCalls::Empty)?);
    }
    let mut text = text.map_err(|why| ApiError::param("messages", why.to_string()))?;
    if rendering.continue_final_message {
        let Some(end) = text.rfind(OPEN_END) else {
            let message = "`continue_final_message` is not supported by this model's chat template: it does not \
                 write the last message at the end of the prompt";
            return Err(ApiError::param("continue_final_message", message));
        };
        text.truncate(end);
    }
    Ok(text)
}

/// Tokenizes a rendered prompt. Most templates write what the model expects at the beginning (BOS, mostly)
/// themselves; it is put before the rest only where it is missing, so that there is never a second one.
///
/// # Errors
/// [`ApiError`], as the tokenizer reports it.
pub fn encode(model: &ServedModel, text: &str) -> Result<Vec<u32>, ApiError> {
    let ids = model.tokenizer.encode(text, false);
    let ids = ids.map_err(|why| ApiError::param("messages", why.to_string()))?;
    let prefix = model.tokenizer.prefix();
    if ids.starts_with(prefix) { Ok(ids) } else { Ok([prefix, &ids].concat()) }
}

/// Text of a message's content; `None` without content.
///
/// # Errors
/// [`ApiError`] with the path of a part that is not text. `at` is the index of the message.
pub fn text_of(at: usize, content: Option<&Content>) -> Result<Option<String>, ApiError> {
    match content {
        None => Ok(None),
        Some(Content::Text(text)) => Ok(Some(text.clone())),
        Some(Content::Parts(parts)) => {
            let texts: Result<Vec<_>, _> = parts
                .iter()
                .enumerate()
                .map(|(part_at, part)| part_text(at, part_at, part))
                .collect();
            Ok(Some(texts?.join("\n")))
        }
    }
}

fn part_text(at: usize, part_at: usize, part: &ContentPart) -> Result<&str, ApiError> {
    let path = format!("messages[{at}].content[{part_at}]");
    match (part.kind.as_str(), &part.text) {
        ("text", Some(text)) => Ok(text),
        ("text", None) => {
            let path = format!("{path}.text");
            Err(ApiError::param(
                path.clone(),
                format!("`{path}` is required in a part of type `text`"),
            ))
        }
        (kind, _) => {
            let path = format!("{path}.type");
            let message = format!(
                "`{path}` must be `text`, got `{}`: this model reads text only",
                quoted(kind)
            );
            Err(ApiError::param(path, message).with_code("unsupported_content"))
        }
    }
}

/// Converts a message for the template. `open`: the completion continues it.
fn message(
    model: &ServedModel,
    at: usize,
    message: &ChatMessage,
    open: bool,
    broken_calls: BrokenCalls,
    broken: &Cell<bool>,
) -> Result<Message, ApiError> {
    check_role(model, at, &message.role)?;
    let mut content = text_of(at, message.content.as_ref())?;
    let mut more = message.more.clone();
    let calls = more
        .get_mut("tool_calls")
        .map(|calls| tool_calls(at, calls, broken_calls, broken))
        .transpose()?;
    if calls == Some(0) {
        more.shift_remove("tool_calls");
    }
    let calls = calls.unwrap_or(0) > 0;
    if open && message.role != "assistant" {
        let path = format!("messages[{at}].role");
        let message = format!("`{path}` must be `assistant` with `continue_final_message`");
        return Err(ApiError::param(path, message));
    }
    if message.role == "assistant" && (calls || open) {
        // Templates join or test the text beside tool calls, and not all of them accept null.
        content.get_or_insert_default();
    }
    let Some(mut content) = content else {
        let path = format!("messages[{at}].content");
        let message = format!("`{path}` is required");
        return Err(ApiError::param(path, message));
    };
    if open {
        content.push_str(OPEN_END);
    }
    let role = match message.role.as_str() {
        "developer" if !model.developer => "system",
        role => role,
    };
    let mut fields = Map::new();
    fields.insert("role".into(), role.into());
    fields.insert("content".into(), content.into());
    fields.extend(more);
    let path = format!("messages[{at}]");
    Message::from_value(Value::Object(fields), &path)
        .map_err(|why| ApiError::param(path, why.to_string()))
}

/// Roles that OpenAI's API has, but for the old `function`.
const ROLES: [&str; 5] = ["system", "developer", "user", "assistant", "tool"];

/// Rejects a role that is neither OpenAI's nor the template's: most templates would write it as it is, and the model
/// was not trained with it.
fn check_role(model: &ServedModel, at: usize, role: &str) -> Result<(), ApiError> {
    if ROLES.contains(&role) || model.roles.contains(role) {
        return Ok(());
    }
    let path = format!("messages[{at}].role");
    let message = format!(
        "`{path}` must be one of {1}, or a role that the model's chat template names, got `{0}`",
        quoted(role),
        ROLES.join(", ")
    );
    Err(ApiError::param(path, message))
}

/// Quoted words of a template, which include its roles.
pub fn quoted_words(template: &str) -> HashSet<String> {
    let is_word = |part: &&str| {
        (1..=32).contains(&part.len())
            && part.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-'))
    };
    let quotes = ['"', '\''];
    quotes.iter().flat_map(|q| template.split(*q).filter(is_word)).map(str::to_owned).collect()
}

/// Replacement for arguments that are not a JSON object, such as those of a call that was cut off. They are not
/// rejected, because every later request of the conversation repeats them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BrokenCalls {
    /// The text, as the model wrote it.
    AsText,
    /// An empty object, as vLLM.
    Empty,
}

/// Parses the arguments of the assistant's tool calls: strings in requests, objects in templates. Returns the number of
/// calls.
fn tool_calls(
    at: usize,
    calls: &mut Value,
    broken_calls: BrokenCalls,
    broken: &Cell<bool>,
) -> Result<usize, ApiError> {
    let path = format!("messages[{at}].tool_calls");
    let wrong =
        |path: String, what: &str| ApiError::param(path.clone(), format!("`{path}` {what}"));
    let Value::Array(calls) = calls else {
        return Err(wrong(path, "must be a list of calls"));
    };
    for (call_at, call) in calls.iter_mut().enumerate() {
        let path = format!("{path}[{call_at}].function");
        let Some(Value::Object(function)) = call.get_mut("function") else {
            return Err(wrong(path, "is required: an object with `name` and `arguments`"));
        };
        if !function.get("name").is_some_and(Value::is_string) {
            return Err(wrong(format!("{path}.name"), "is required: a string"));
        }
        let arguments = function.entry("arguments").or_insert(Value::Null);
        let path = format!("{path}.arguments");
        match arguments {
            Value::Object(_) => {}
            Value::Null => *arguments = Value::Object(Map::new()),
            Value::String(text) if text.trim().is_empty() => *arguments = Value::Object(Map::new()),
            Value::String(text) => match tree::from_text(text) {
                Ok(Value::Object(object)) => *arguments = Value::Object(object),
                _ => {
                    broken.set(true);
                    if broken_calls == BrokenCalls::Empty {
                        *arguments = Value::Object(Map::new());
                    }
                }
            },
            _ => return Err(wrong(path, "must be a JSON object as a string")),
        }
    }
    Ok(calls.len())
}
