//! What an answer must look like so that it calls what it must call, in the model's own way of writing.

use std::fmt::Write;

use l4_sampler::guide::{GuideSpec, quoted};
use serde_json::{Value, json};

use super::ToolFormat;
use crate::server::error::ApiError;
use crate::server::protocol::chat::{Tool, ToolChoice, ToolMode};

/// What the answer must look like so that it calls what it must call. `None`: it may look like anything.
///
/// A model that was not taught to call is made to write plain JSON, which needs no format: the arguments of the call that
/// was named, or `[{"name": ..., "parameters": {...}}, ...]`. `closed`: arguments have no properties that their schemas do
/// not declare, see [`GuideSpec::ClosedJsonSchema`].
///
/// # Errors
/// [`ApiError`]: a model that was not taught to call and may choose whether it does, a tool that is not there or that
/// cannot be called.
pub fn guide(
    format: ToolFormat,
    tools: &[Tool],
    choice: Option<&ToolChoice>,
    parallel: bool,
    closed: bool,
) -> Result<Option<GuideSpec>, ApiError> {
    for (at, tool) in tools.iter().enumerate() {
        if tool.kind != "function" {
            let path = format!("tools[{at}].type");
            let message = format!("{path}: `{}` is not known: use \"function\"", tool.kind);
            return Err(ApiError::param(path, message));
        }
        if tool.function.name.is_empty() {
            let path = format!("tools[{at}].function.name");
            let message = format!("{path}: it is empty: give the function a name");
            return Err(ApiError::param(path, message));
        }
    }
    let (named, parallel) = match choice {
        Some(ToolChoice::Mode(ToolMode::None)) => return Ok(None),
        None | Some(ToolChoice::Mode(ToolMode::Auto)) if tools.is_empty() => return Ok(None),
        None | Some(ToolChoice::Mode(ToolMode::Auto)) => {
            taught(format)?;
            return Ok(None);
        }
        Some(ToolChoice::Mode(ToolMode::Required)) if tools.is_empty() => {
            let message = "tool_choice: a call is required, and there are no `tools`";
            return Err(ApiError::param("tool_choice", message));
        }
        Some(ToolChoice::Mode(ToolMode::Required)) => (None, parallel),
        Some(ToolChoice::Named(named)) => (Some(named.function.name.as_str()), false),
    };
    let chosen = |tool: &&Tool| named.is_none_or(|name| tool.function.name == name);
    let calls = tools.iter().enumerate().filter(|(_, tool)| chosen(tool));
    let calls: Result<Vec<Call<'_>>, ApiError> =
        calls.map(|(at, tool)| Call::new(at, tool, closed)).collect();
    let calls = calls?;
    if calls.is_empty() {
        let name = named.unwrap_or_default();
        let message = format!("tool_choice: there is no `{name}` among the tools");
        return Err(ApiError::param("tool_choice.function.name", message));
    }
    Ok(Some(GuideSpec::Lark(grammar(format, &calls, named.is_some(), parallel))))
}

fn taught(format: ToolFormat) -> Result<(), ApiError> {
    if format != ToolFormat::None {
        return Ok(());
    }
    let message = "tools: it is not known how this model calls tools: say which one it must call (`tool_choice`), leave them out, or start the server with --tool-call-parser";
    Err(ApiError::param("tools", message).with_code("tools_not_supported"))
}

/// What can be called.
struct Call<'a> {
    name: &'a str,
    /// Of its arguments.
    schema: Value,
}

impl<'a> Call<'a> {
    fn new(at: usize, tool: &'a Tool, closed: bool) -> Result<Self, ApiError> {
        let path = format!("tools[{at}].function.parameters");
        let mut schema = match tool.function.parameters.clone() {
            // OpenAI: without parameters it takes none.
            None | Some(Value::Null) => json!({"additionalProperties": false}),
            Some(Value::Bool(true)) => json!({}),
            Some(schema @ Value::Object(_)) => schema,
            Some(_) => {
                let message = format!("{path}: a JSON schema of an object is wanted");
                return Err(ApiError::param(path, message));
            }
        };
        // Arguments are an object, also where the schema does not say so.
        match schema.get("type") {
            None => schema["type"] = "object".into(),
            Some(kind) if kind == "object" => {}
            Some(kind) => {
                let message = format!("{path}.type: arguments are an \"object\", not {kind}");
                return Err(ApiError::param(path + ".type", message));
            }
        }
        // As `json.dumps` writes, and as models have learnt: blanks behind colons and commas, and no others.
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
                .map_err(|why| ApiError::param(path.clone(), format!("{path}: {why}")))?;
        }
        schema["x-guidance"] = guidance;
        Ok(Self { name: &tool.function.name, schema })
    }
}

/// A grammar of one or more calls; of the arguments alone where the call is known, and no format.
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
