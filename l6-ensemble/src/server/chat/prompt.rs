//! From a conversation to the tokens of a prompt.
//!
//! Messages come as clients of OpenAI write them, and go to the template as templates want them: parts become one text,
//! the arguments of calls become objects (of a call that was cut off, they stay text), `developer` becomes `system` where
//! the template knows no developers.

use std::cell::Cell;
use std::collections::HashSet;

use l2_model::chat_template::Message;
use serde_json::{Map, Value};

use crate::server::error::{ApiError, quoted};
use crate::server::json::tree;
use crate::server::model::ServedModel;
use crate::server::protocol::chat::{ChatMessage, Content, ContentPart, Tool};

/// Stands behind the text that the answer continues, to find it again in what a template made of it. (Two characters of
/// Unicode's private use: no text has them both by accident.)
const OPEN_END: &str = "\u{f8c3}\u{f8c4}";

/// What a conversation is rendered with.
#[derive(Clone, Debug, Default)]
pub struct Rendering<'a> {
    /// What the model may call.
    pub tools: &'a [Tool],
    /// Variables of the template.
    pub variables: Map<String, Value>,
    /// Whether the head of the answer is added.
    pub add_generation_prompt: bool,
    /// Whether the last message is the beginning of the answer, and left open.
    pub continue_final_message: bool,
}

/// The prompt's text, as the model's template writes it.
///
/// # Errors
/// [`ApiError`]: no template, parts that are not text, a conversation that the template refuses.
pub fn render(
    model: &ServedModel,
    messages: &[ChatMessage],
    rendering: &Rendering<'_>,
) -> Result<String, ApiError> {
    let Some(template) = &model.template else {
        let message = "this model has no chat template: use /v1/completions, or start the server with --chat-template";
        return Err(ApiError::invalid(message).with_code("no_chat_template"));
    };
    if messages.is_empty() {
        return Err(ApiError::param("messages", "messages: there should be at least one"));
    }
    // Arguments of calls are values within texts, and count as those of a body.
    tree::begin();
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
    // What the request says by fields of its own, variables cannot say otherwise.
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
        // The template walks through arguments, and a text has none.
        text = render(&read(BrokenCalls::Empty)?);
    }
    let mut text = text.map_err(|why| ApiError::param("messages", why.to_string()))?;
    if rendering.continue_final_message {
        let Some(end) = text.rfind(OPEN_END) else {
            let message = "continue_final_message: this model's template does not write the last message at the end";
            return Err(ApiError::param("continue_final_message", message));
        };
        text.truncate(end);
    }
    Ok(text)
}

/// A prompt's text as tokens. Most templates write what the model expects at the beginning (BOS, mostly) themselves; it is
/// put before the rest only where it is missing, so that there is never a second one.
///
/// # Errors
/// [`ApiError`]: what the tokenizer reports.
pub fn encode(model: &ServedModel, text: &str) -> Result<Vec<u32>, ApiError> {
    let ids = model.tokenizer.encode(text, false);
    let ids = ids.map_err(|why| ApiError::param("messages", why.to_string()))?;
    let prefix = model.tokenizer.prefix();
    if ids.starts_with(prefix) { Ok(ids) } else { Ok([prefix, &ids].concat()) }
}

/// The text of a message's content; none where it has no content.
///
/// # Errors
/// [`ApiError`] with the path of a part that is not text. `at` is the message's place.
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
            Err(ApiError::param(path.clone(), format!("{path}: missing: a part of text has it")))
        }
        (kind, _) => {
            let path = format!("{path}.type");
            let message = format!("{path}: this model reads `text` only, not `{kind}`");
            Err(ApiError::param(path, message).with_code("unsupported_content"))
        }
    }
}

/// A message as templates want it. `open`: the answer continues it.
fn message(
    model: &ServedModel,
    at: usize,
    message: &ChatMessage,
    open: bool,
    broken_calls: BrokenCalls,
    broken: &Cell<bool>,
) -> Result<Message, ApiError> {
    known_role(model, at, &message.role)?;
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
        let message = format!("{path}: continue_final_message goes on with the assistant's words");
        return Err(ApiError::param(path, message));
    }
    if message.role == "assistant" && (calls || open) {
        // Templates join or test the text beside calls: null is none to them all.
        content.get_or_insert_default();
    }
    let Some(mut content) = content else {
        let path = format!("messages[{at}].content");
        let message = format!("{path}: missing: say something");
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

/// Refuse a role that neither OpenAI nor the template knows: most templates would write it as it is, and the model has
/// never seen it.
fn known_role(model: &ServedModel, at: usize, role: &str) -> Result<(), ApiError> {
    if ROLES.contains(&role) || model.roles.contains(role) {
        return Ok(());
    }
    let path = format!("messages[{at}].role");
    let message = format!(
        "{path}: `{}` is not known: use one of {}, or one that the model's chat template names",
        quoted(role),
        ROLES.join(", ")
    );
    Err(ApiError::param(path, message))
}

/// The words in quotes of a template.
pub fn quoted_words(template: &str) -> HashSet<String> {
    let word = |part: &&str| {
        (1..=32).contains(&part.len())
            && part.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-'))
    };
    let quotes = ['"', '\''];
    quotes.iter().flat_map(|q| template.split(*q).filter(word)).map(str::to_owned).collect()
}

/// What a template gets for arguments that are no JSON object, such as those of a call that was cut off. To refuse them
/// would end the conversation: every later request repeats them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BrokenCalls {
    /// The text, as the model wrote it.
    AsText,
    /// An empty object, as vLLM.
    Empty,
}

/// Calls that the assistant made: their arguments are text on the wire, and an object to a template. How many there are.
fn tool_calls(
    at: usize,
    calls: &mut Value,
    broken_calls: BrokenCalls,
    broken: &Cell<bool>,
) -> Result<usize, ApiError> {
    let path = format!("messages[{at}].tool_calls");
    let wrong = |path: String, what: &str| ApiError::param(path.clone(), format!("{path}: {what}"));
    let Value::Array(calls) = calls else {
        return Err(wrong(path, "should be a list of calls"));
    };
    for (call_at, call) in calls.iter_mut().enumerate() {
        let path = format!("{path}[{call_at}].function");
        let Some(Value::Object(function)) = call.get_mut("function") else {
            return Err(wrong(path, "missing: should be an object with `name` and `arguments`"));
        };
        if !function.get("name").is_some_and(Value::is_string) {
            return Err(wrong(format!("{path}.name"), "missing: should be text"));
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
            _ => return Err(wrong(path, "should be the text of a JSON object")),
        }
    }
    Ok(calls.len())
}
