//! Grammar of an output that must call a tool, in the format of the model.

use std::fmt::Write;

use serde_json::{Value, json};
use thiserror::Error;

use super::{ToolChoice, ToolDefinition, ToolFormat};
use crate::guide::{GuideSpec, quoted};

/// Why a tool choice cannot be satisfied.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{message}")]
pub struct ToolError {
    /// Path of the field of an OpenAI request that is at fault, as in `tools[0].function.name`.
    pub param: String,
    /// Description of what is wrong, and what to do.
    pub message: String,
    /// Whether the model, and not the request, is the reason: its tool-call format is not known.
    pub unsupported: bool,
}

impl ToolError {
    fn param(param: impl Into<String>, message: impl Into<String>) -> Self {
        Self { param: param.into(), message: message.into(), unsupported: false }
    }
}

/// Guide that makes an output call what the tool choice requires. `None`: the output is not restricted.
///
/// A model that was not trained to call tools must write plain JSON: the arguments of the named function, or `[{"name":
/// ..., "parameters": {...}}, ...]`. `closed`: arguments have no properties that their schemas do not declare, see
/// [`GuideSpec::ClosedJsonSchema`].
///
/// # Errors
/// [`ToolError`] if the choice is left to a model that was not trained to call tools, if the named tool does not exist,
/// or if its schema is invalid.
pub fn guide(
    format: ToolFormat,
    tools: &[ToolDefinition<'_>],
    choice: &ToolChoice,
    parallel: bool,
    closed: bool,
) -> Result<Option<GuideSpec>, ToolError> {
    for (at, tool) in tools.iter().enumerate() {
        if tool.name.is_empty() {
            let path = format!("tools[{at}].function.name");
            let message = format!("{path}: it is empty: give the function a name");
            return Err(ToolError::param(path, message));
        }
    }
    let (named, parallel) = match choice {
        ToolChoice::None => return Ok(None),
        ToolChoice::Auto if tools.is_empty() => return Ok(None),
        ToolChoice::Auto => {
            taught(format)?;
            return Ok(None);
        }
        ToolChoice::Required if tools.is_empty() => {
            let message = "`tool_choice` requires a call, and there are no `tools`: add them";
            return Err(ToolError::param("tool_choice", message));
        }
        ToolChoice::Required => (None, parallel),
        ToolChoice::Named(name) => (Some(name.as_str()), false),
    };
    let chosen = |tool: &&ToolDefinition<'_>| named.is_none_or(|name| tool.name == name);
    let calls = tools.iter().enumerate().filter(|(_, tool)| chosen(tool));
    let calls: Result<Vec<Call<'_>>, ToolError> =
        calls.map(|(at, tool)| Call::new(at, tool, closed)).collect();
    let calls = calls?;
    if calls.is_empty() {
        let name = named.unwrap_or_default();
        let message = format!("tool_choice: there is no `{name}` among the tools");
        return Err(ToolError::param("tool_choice.function.name", message));
    }
    Ok(Some(GuideSpec::Lark(grammar(format, &calls, named.is_some(), parallel))))
}

fn taught(format: ToolFormat) -> Result<(), ToolError> {
    if format != ToolFormat::None {
        return Ok(());
    }
    let message = "tools: this model's format of tool calls is not known: set `tool_choice`, omit `tools`, or start the \
                   server with --tool-call-parser";
    Err(ToolError { unsupported: true, ..ToolError::param("tools", message) })
}

/// A function that can be called.
struct Call<'a> {
    name: &'a str,
    /// Schema of its arguments.
    schema: Value,
}

impl<'a> Call<'a> {
    fn new(at: usize, tool: &ToolDefinition<'a>, closed: bool) -> Result<Self, ToolError> {
        let path = format!("tools[{at}].function.parameters");
        let mut schema = match tool.parameters.cloned() {
            // OpenAI: a function without a schema has no parameters.
            None | Some(Value::Null) => json!({"additionalProperties": false}),
            Some(Value::Bool(true)) => json!({}),
            Some(schema @ Value::Object(_)) => schema,
            Some(_) => {
                let message = format!("{path}: a JSON schema of an object is wanted");
                return Err(ToolError::param(path, message));
            }
        };
        // Arguments are an object, also where the schema does not say so.
        match schema.get("type") {
            None => schema["type"] = "object".into(),
            Some(kind) if kind == "object" => {}
            Some(kind) => {
                let message = format!("{path}.type: arguments are an \"object\", not {kind}");
                return Err(ToolError::param(path + ".type", message));
            }
        }
        // Blanks behind colons and commas only: as `json.dumps` writes, and as models are trained.
        let guidance = schema.get("x-guidance").cloned().unwrap_or_else(|| {
            json!({
                "item_separator": ", ",
                "key_separator": ": ",
                "whitespace_flexible": false,
                "lenient": true,
            })
        });
        if closed {
            schema = GuideSpec::closed(schema)
                .map_err(|why| ToolError::param(path.clone(), format!("{path}: {why}")))?;
        }
        schema["x-guidance"] = guidance;
        Ok(Self { name: tool.name, schema })
    }
}

/// A grammar of one or more calls; of the arguments alone if the function is named and the model has no format.
fn grammar(format: ToolFormat, calls: &[Call<'_>], named: bool, parallel: bool) -> String {
    let (before, arguments, after, between) = match format {
        ToolFormat::None if named => {
            let schema = calls.first().map_or(&Value::Null, |call| &call.schema);
            return format!("start: args\nargs: %json {schema}\n");
        }
        ToolFormat::None => ("", "parameters", "", ", "),
        ToolFormat::Llama3Json => ("", "parameters", "", "; "),
        ToolFormat::Hermes => ("<tool_call>\n", "arguments", "\n</tool_call>", "\n"),
    };
    let (open, close) = if format == ToolFormat::None { ("\"[\" ", " \"]\"") } else { ("", "") };
    let more = if parallel { format!(" ({} call)*", quoted(between)) } else { String::new() };
    let choices: Vec<String> = (0..calls.len()).map(|at| format!("call_{at}")).collect();
    let mut lark = format!("start: {open}call{more}{close}\ncall: {}\n", choices.join(" | "));
    for (at, Call { name, schema }) in calls.iter().enumerate() {
        let name = Value::from(*name);
        let head = quoted(&format!("{before}{{\"name\": {name}, \"{arguments}\": "));
        let foot = quoted(&format!("}}{after}"));
        // Writing to a string cannot fail.
        let _ = writeln!(lark, "call_{at}: {head} args_{at} {foot}\nargs_{at}: %json {schema}");
    }
    lark
}
