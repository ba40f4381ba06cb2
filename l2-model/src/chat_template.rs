//! Chat templates: from a list of messages to the prompt format of the model.
//!
//! Every chat model ships its prompt format as a Jinja template, written for Python's Jinja2 as transformers sets it
//! up (`utils/chat_template_utils.py`). Here minijinja runs it, with the same settings and extensions:
//! `trim_blocks`, `lstrip_blocks`, `break` and `continue`, `raise_exception`, `strftime_now`, a `tojson` that writes
//! what `json.dumps` writes, methods of Python's strings and dicts, `{% generation %}` blocks, and values printed as
//! Python prints them. See [`ChatTemplate::render`] for the variables a template sees.

mod python;

use std::fmt;
use std::time::SystemTime;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::Value as Jinja;
use minijinja::{AutoEscape, Environment, ErrorKind};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};

const NAME: &str = "chat_template";

/// A template or a conversation that cannot be rendered.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ChatTemplateError {
    /// The template does not parse.
    #[error("chat template, line {line}: {message}")]
    Syntax {
        /// Line in the template's source, from 1.
        line: usize,
        /// What is wrong there.
        message: String,
    },

    /// The template refused the conversation with `raise_exception`. The message is for the client that sent the
    /// conversation.
    #[error("the chat template refuses this conversation: {message} (template line {line})")]
    Refused {
        /// Message of the template.
        message: String,
        /// Line in the template's source, from 1.
        line: usize,
    },

    /// The template failed while running, for example by calling something that does not exist.
    #[error("chat template, line {line}: {message}")]
    Render {
        /// Line in the template's source, from 1.
        line: usize,
        /// What went wrong there.
        message: String,
    },

    /// The messages are not JSON.
    #[error("messages: {0}")]
    Json(#[from] serde_json::Error),

    /// The messages are JSON of another shape than a conversation.
    #[error("messages: {path}: {problem}")]
    Shape {
        /// Where in the JSON, as in `messages[2].role`.
        path: String,
        /// What was expected there, and what was found.
        problem: String,
    },
}

/// Argument of `raise_exception`, passed on as the source of minijinja's error.
#[derive(Debug)]
struct Raised(String);

impl fmt::Display for Raised {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Raised {}

/// One message of a conversation: a JSON object with a `role`, mostly a `content`, and whatever else the template
/// knows (`tool_calls`, `name`, `reasoning_content`, ...). Fields keep their order, and one that is absent stays
/// absent: templates tell `null` from missing.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(transparent)]
pub struct Message(Map<String, Value>);

impl Message {
    /// Creates a message of text.
    pub fn new(role: &str, content: &str) -> Self {
        let fields = [("role", role), ("content", content)];
        Self(fields.map(|(key, text)| (key.to_owned(), Value::from(text))).into_iter().collect())
    }

    /// Sets a field of the message.
    #[must_use]
    pub fn with(mut self, field: &str, value: impl Into<Value>) -> Self {
        self.0.insert(field.to_owned(), value.into());
        self
    }

    /// Checks that `value` is a message. `path` is its path in the JSON, for the error.
    ///
    /// # Errors
    /// [`ChatTemplateError::Shape`]: a message is an object with a string `role`, and a `content` that is text, null
    /// or a list of parts.
    pub fn from_value(value: Value, path: &str) -> Result<Self, ChatTemplateError> {
        let Value::Object(fields) = value else {
            return Err(shape(path, "an object with role and content", Some(&value)));
        };
        match fields.get("role") {
            Some(Value::String(_)) => {}
            other => return Err(shape(&format!("{path}.role"), "a string", other)),
        }
        match fields.get("content") {
            None | Some(Value::Null | Value::String(_)) => {}
            Some(Value::Array(parts)) => {
                if let Some((i, part)) =
                    parts.iter().enumerate().find(|(_, part)| !part.is_object())
                {
                    return Err(shape(&format!("{path}.content[{i}]"), "an object", Some(part)));
                }
            }
            other => {
                return Err(shape(
                    &format!("{path}.content"),
                    "a string, null or a list of parts",
                    other,
                ));
            }
        }
        Ok(Self(fields))
    }

    /// `system`, `user`, `assistant`, `tool`, ...
    pub fn role(&self) -> &str {
        self.0.get("role").and_then(Value::as_str).unwrap_or_default()
    }

    /// The content, if it is plain text.
    pub fn content(&self) -> Option<&str> {
        self.0.get("content").and_then(Value::as_str)
    }

    /// All fields in order.
    pub fn fields(&self) -> &Map<String, Value> {
        &self.0
    }
}

impl<'de> Deserialize<'de> for Message {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::from_value(Value::deserialize(deserializer)?, "message")
            .map_err(serde::de::Error::custom)
    }
}

/// Contents of a messages file: a list of messages, or an object with `messages` and further template variables such as
/// `tools`.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Conversation {
    /// Messages, in order.
    pub messages: Vec<Message>,
    /// All fields except `messages`.
    pub extra: Map<String, Value>,
}

impl Conversation {
    /// Reads a conversation from JSON text.
    ///
    /// # Errors
    /// [`ChatTemplateError::Json`] if it is not JSON, [`ChatTemplateError::Shape`] naming the place if it is no
    /// conversation.
    pub fn from_json(text: &str) -> Result<Self, ChatTemplateError> {
        let (list, extra) = match serde_json::from_str(text)? {
            Value::Object(mut fields) => {
                (fields.shift_remove("messages").unwrap_or(Value::Null), fields)
            }
            list => (list, Map::new()),
        };
        let Value::Array(list) = list else {
            return Err(shape("messages", "a list of messages", Some(&list)));
        };
        let numbered = list.into_iter().enumerate();
        let messages =
            numbered.map(|(i, value)| Message::from_value(value, &format!("messages[{i}]")));
        Ok(Self { messages: messages.collect::<Result<_, _>>()?, extra })
    }
}

fn shape(path: &str, expected: &str, found: Option<&Value>) -> ChatTemplateError {
    let found = match found {
        None => "nothing",
        Some(Value::Null) => "null",
        Some(Value::Bool(_)) => "a boolean",
        Some(Value::Number(_)) => "a number",
        Some(Value::String(_)) => "a string",
        Some(Value::Array(_)) => "a list",
        Some(Value::Object(_)) => "an object",
    };
    ChatTemplateError::Shape {
        path: path.to_owned(),
        problem: format!("expected {expected}, found {found}"),
    }
}

/// Maximum number of steps of a rendering, so that a template of a downloaded model cannot loop for ever. Thousands of
/// messages need a fraction of it.
const FUEL: u64 = 10_000_000;

/// A compiled chat template. Immutable and `Sync`.
pub struct ChatTemplate {
    environment: Environment<'static>,
    bos: Option<String>,
    eos: Option<String>,
}

impl fmt::Debug for ChatTemplate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChatTemplate")
            .field("bos", &self.bos)
            .field("eos", &self.eos)
            .finish_non_exhaustive()
    }
}

impl ChatTemplate {
    /// Compiles `source`. `bos` and `eos` are the spellings of those tokens, for templates that write them out.
    ///
    /// # Errors
    /// [`ChatTemplateError::Syntax`] with the line.
    pub fn new(
        source: &str,
        bos: Option<&str>,
        eos: Option<&str>,
    ) -> Result<Self, ChatTemplateError> {
        Self::with_clock(source, bos, eos, SystemTime::now)
    }

    /// As [`ChatTemplate::new`], with the caller's clock for `strftime_now`, so that a prompt can be reproduced.
    ///
    /// # Errors
    /// [`ChatTemplateError::Syntax`] with the line.
    pub fn with_clock(
        source: &str,
        bos: Option<&str>,
        eos: Option<&str>,
        clock: impl Fn() -> SystemTime + Send + Sync + 'static,
    ) -> Result<Self, ChatTemplateError> {
        let mut environment = Environment::new();
        environment.set_syntax(
            // These settings are constants that minijinja accepts: only delimiters can be refused.
            SyntaxConfig::builder()
                .trim_blocks(true)
                .lstrip_blocks(true)
                .build()
                .map_err(|e| syntax(&e))?,
        );
        environment.set_auto_escape_callback(|_| AutoEscape::None);
        environment.set_fuel(Some(FUEL));
        environment.set_unknown_method_callback(python::method);
        environment.set_formatter(|out, _, value| python::print(out, value));
        environment.add_filter("tojson", python::tojson);
        environment.add_filter("string", |value: &Jinja| python::text(value));
        environment.add_function(
            "raise_exception",
            |message: String| -> Result<Jinja, minijinja::Error> {
                let error = minijinja::Error::new(ErrorKind::InvalidOperation, "raise_exception");
                Err(error.with_source(Raised(message)))
            },
        );
        environment
            .add_function("strftime_now", move |format: String| python::strftime(clock(), &format));
        environment
            .add_template_owned(NAME, generation_as_scope(source))
            .map_err(|e| syntax(&e))?;
        Ok(Self { environment, bos: bos.map(str::to_owned), eos: eos.map(str::to_owned) })
    }

    /// Renders the prompt. The variables of the template are `messages`, `add_generation_prompt` (whether to append the
    /// head of the assistant's message), `bos_token` and `eos_token` if known, `tools` and `documents` if given, and
    /// the fields of `extra`, which override all of these but the first two.
    ///
    /// # Errors
    /// [`ChatTemplateError::Refused`] if the template refuses the messages, [`ChatTemplateError::Render`] if it fails.
    pub fn render(
        &self,
        messages: &[Message],
        add_generation_prompt: bool,
        extra: &Map<String, Value>,
    ) -> Result<String, ChatTemplateError> {
        let mut variables: Map<String, Value> = Map::new();
        for name in ["tools", "documents"] {
            variables.insert(name.to_owned(), Value::Null);
        }
        for (name, token) in [("bos_token", &self.bos), ("eos_token", &self.eos)] {
            variables
                .extend(token.as_ref().map(|token| (name.to_owned(), Value::from(token.as_str()))));
        }
        variables.extend(extra.iter().map(|(name, value)| (name.clone(), value.clone())));
        variables.insert("add_generation_prompt".to_owned(), Value::Bool(add_generation_prompt));
        let messages: Jinja = messages.iter().map(|message| python::object(&message.0)).collect();
        let pairs = variables.iter().map(|(name, value)| (name.as_str(), python::value(value)));
        let context = Jinja::from_pairs(pairs.chain([("messages", messages)]));
        let template = self.environment.get_template(NAME).map_err(|e| runtime(&e))?;
        template.render(context).map_err(|e| runtime(&e))
    }
}

fn describe(error: &minijinja::Error) -> (usize, String) {
    let message = match error.detail() {
        Some(detail) => format!("{}: {detail}", error.kind()),
        None => error.kind().to_string(),
    };
    (error.line().unwrap_or(0), message)
}

fn syntax(error: &minijinja::Error) -> ChatTemplateError {
    let (line, message) = describe(error);
    ChatTemplateError::Syntax { line, message }
}

fn runtime(error: &minijinja::Error) -> ChatTemplateError {
    let (line, message) = describe(error);
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(current) = cause {
        if let Some(Raised(message)) = current.downcast_ref() {
            return ChatTemplateError::Refused { message: message.clone(), line };
        }
        cause = current.source();
    }
    ChatTemplateError::Render { line, message }
}

/// `{% generation %}` marks, for training, which part of the output is the assistant's. It prints its body in a scope
/// of its own, and so does `{% with %}`, which minijinja knows. Dashes and line breaks stay where they are.
fn generation_as_scope(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find("{%") {
        let (before, tag) = rest.split_at(start + 2);
        out.push_str(before);
        let inner = tag.trim_start_matches(['-', '+']).trim_start();
        let word_at = tag.len() - inner.len();
        let word_len =
            inner.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(inner.len());
        let replacement = match &inner[..word_len] {
            "generation" => Some("with"),
            "endgeneration" => Some("endwith"),
            _ => None,
        };
        let closes =
            inner[word_len..].trim_start().trim_start_matches(['-', '+']).starts_with("%}");
        rest = match replacement.filter(|_| closes) {
            Some(word) => {
                out.push_str(&tag[..word_at]);
                out.push_str(word);
                &inner[word_len..]
            }
            None => tag,
        };
    }
    out.push_str(rest);
    out
}
