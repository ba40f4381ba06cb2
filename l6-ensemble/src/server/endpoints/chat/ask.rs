//! From a request to what the engine is asked, and to what is told of the answers.

use serde_json::{Map, Value};

use super::reader::Reader;
use crate::server::app::{App, Shared};
use crate::server::chat::prompt::{Rendering, encode, render, text_of};
use crate::server::chat::reasoning::ReasoningParser;
use crate::server::chat::tools::{ToolParser, guide};
use crate::server::error::ApiError;
use crate::server::protocol::chat::{
    ChatFields, ChatMessage, ChatRequest, Content, Tool, ToolChoice, ToolMode,
};
use crate::server::request::{Plan, plan};
use crate::server::tokenise::{aside, could_fit, fits};

/// A conversation of more bytes than this is made into tokens aside, so that others need not wait for it.
const LONG: usize = 4 << 10;

/// A request that can be meant.
pub struct Asked {
    /// What the engine is asked, but for the prompt.
    pub plan: Plan,
    /// The prompt.
    pub prompt: Vec<u32>,
    /// Reads an answer.
    pub reader: Reader,
    /// Whether a call that was made ends the answer with `tool_calls`. Not one that was named in the request: OpenAI says
    /// `stop` there.
    pub calls_end: bool,
}

/// What a request asks for.
///
/// # Errors
/// [`ApiError`] naming the field that cannot be meant.
pub async fn ask(app: &Shared, request: ChatRequest) -> Result<Asked, ApiError> {
    let own = &request.own;
    let max_tokens = max_tokens(own)?;
    let mut plan = plan(app, &request.sampling, max_tokens, logprobs(app, own)?)?;
    let calling = calling(own)?;
    plan.template.continues = own.continue_final_message == Some(true);
    if let Some(calls) = &calling
        && let Some(guide) = calls.guide(app)?
    {
        if plan.template.guide.is_some() {
            let message = "tool_choice: the answer cannot follow a guide and call a tool: ask for one of them";
            return Err(ApiError::param("tool_choice", message));
        }
        plan.template.guide = Some(guide);
    }
    let calls_end = !matches!(own.tool_choice, Some(ToolChoice::Named(_)));
    let guided = plan.template.guide.is_some();
    let thoughts = own.include_reasoning != Some(false);
    let parser = calling
        .as_ref()
        .map(|calls| (ToolParser::new(app.model.tools, &calls.tools), calls.most()));
    let tools = calling.map_or_else(Vec::new, |calls| calls.tools);
    let Prompt { tokens, reasoning } = prompt(app, request.own, tools, guided).await?;
    let reader = Reader::new(reasoning, thoughts);
    let reader = match parser {
        Some((parser, most)) => reader.calling(parser, most),
        None => reader,
    };
    Ok(Asked { plan, prompt: tokens, reader, calls_end })
}

fn max_tokens(own: &ChatFields) -> Result<Option<usize>, ApiError> {
    let (path, given) = match own.max_completion_tokens {
        Some(given) => ("max_completion_tokens", Some(given)),
        None => ("max_tokens", own.max_tokens),
    };
    match given {
        Some(0) => Err(ApiError::param(path, format!("{path}: 0 should be at least 1"))),
        given => Ok(given),
    }
}

/// How many of the likeliest tokens are told beside each, if any.
fn logprobs(app: &App, own: &ChatFields) -> Result<Option<usize>, ApiError> {
    let most = app.options.limits.logprobs;
    let wrong = |why: String| Err(ApiError::param("top_logprobs", format!("top_logprobs: {why}")));
    match (own.logprobs == Some(true), own.top_logprobs) {
        (_, Some(top)) if top > most => wrong(format!("{top} should be from 0 to {most}")),
        (false, None | Some(0)) => Ok(None),
        (false, Some(_)) => wrong("set `logprobs` to true, too".into()),
        (true, top) => Ok(Some(top.unwrap_or(0))),
    }
}

/// What may be called, by an answer that may call.
struct Calling {
    tools: Vec<Tool>,
    choice: Option<ToolChoice>,
    parallel: bool,
}

impl Calling {
    fn guide(&self, app: &App) -> Result<Option<l4_sampler::guide::GuideSpec>, ApiError> {
        guide(app.model.tools, &self.tools, self.choice.as_ref(), self.parallel)
    }

    /// The most calls in one answer.
    fn most(&self) -> usize {
        if self.parallel { usize::MAX } else { 1 }
    }
}

/// What the request says of tools; `None`: nothing may be called. The prompt then tells of no tools either, which is the
/// surest way.
fn calling(own: &ChatFields) -> Result<Option<Calling>, ApiError> {
    let tools = own.tools.clone().unwrap_or_default();
    for (at, tool) in tools.iter().enumerate() {
        let name = &tool.function.name;
        if tools[..at].iter().any(|other| other.function.name == *name) {
            let path = format!("tools[{at}].function.name");
            let message = format!("{path}: `{name}` is there already: give it another name");
            return Err(ApiError::param(path, message));
        }
    }
    let choice = own.tool_choice.clone();
    let calls = match (&choice, tools.is_empty()) {
        (Some(ToolChoice::Mode(ToolMode::None)), _) => false,
        (None | Some(ToolChoice::Mode(ToolMode::Auto)), nothing) => !nothing,
        // Without tools, that is an error; see `guide`.
        (Some(_), _) => true,
    };
    let parallel = own.parallel_tool_calls != Some(false);
    Ok(calls.then_some(Calling { tools, choice, parallel }))
}

struct Prompt {
    tokens: Vec<u32>,
    reasoning: ReasoningParser,
}

async fn prompt(
    app: &Shared,
    own: ChatFields,
    tools: Vec<Tool>,
    guided: bool,
) -> Result<Prompt, ApiError> {
    let open = own.continue_final_message == Some(true);
    if open && own.add_generation_prompt == Some(true) {
        let message = "add_generation_prompt: a message that is continued has its head already: ask for one of them";
        return Err(ApiError::param("add_generation_prompt", message));
    }
    let long = length(&own, &tools) > LONG;
    let make = move |app: &App| {
        let rendering = Rendering {
            tools: &tools,
            variables: variables(&own),
            add_generation_prompt: !open && own.add_generation_prompt != Some(false),
            continue_final_message: open,
        };
        let text = render(&app.model, &own.messages, &rendering)?;
        let format = app.model.reasoning;
        let reasoning = match own.messages.last().filter(|_| open) {
            Some(last) => {
                let begun = text_of(own.messages.len() - 1, last.content.as_ref())?;
                ReasoningParser::within(format, begun.as_deref().unwrap_or_default())
            }
            // An answer to a guide follows it from its first token: it is no thought that the template began.
            None if guided => ReasoningParser::new(format, ""),
            None => ReasoningParser::new(format, &text),
        };
        could_fit(app, &text, "messages")?;
        let tokens = encode(&app.model, &text)?;
        fits(app, &tokens, "messages")?;
        Ok(Prompt { tokens, reasoning })
    };
    if long { aside(app, make).await? } else { make(app) }
}

/// What templates may know beside messages and tools. Those of `chat_template_kwargs` win.
fn variables(own: &ChatFields) -> Map<String, Value> {
    let mut variables = Map::new();
    if let Some(effort) = &own.reasoning_effort {
        variables.insert("reasoning_effort".into(), effort.as_str().into());
    }
    if let Some(documents) = &own.documents {
        let documents = documents.iter().cloned().map(Value::Object);
        variables.insert("documents".into(), documents.collect());
    }
    variables.extend(own.chat_template_kwargs.clone().unwrap_or_default());
    variables
}

/// About how many bytes a template has to write.
fn length(own: &ChatFields, tools: &[Tool]) -> usize {
    let object = |fields: &Map<String, Value>| fields.values().map(bytes).sum::<usize>();
    let message = |message: &ChatMessage| {
        let content = match &message.content {
            None => 0,
            Some(Content::Text(text)) => text.len(),
            Some(Content::Parts(parts)) => {
                parts.iter().map(|part| part.text.as_ref().map_or(0, String::len)).sum()
            }
        };
        // Templates write a head for each.
        32 + content + object(&message.more)
    };
    let tool = |tool: &Tool| {
        let function = &tool.function;
        64 + function.description.as_ref().map_or(0, String::len)
            + function.parameters.as_ref().map_or(0, bytes)
    };
    let documents = own.documents.iter().flatten().map(object).sum::<usize>();
    documents
        + own.messages.iter().map(message).sum::<usize>()
        + tools.iter().map(tool).sum::<usize>()
}

fn bytes(value: &Value) -> usize {
    match value {
        Value::String(text) => 2 + text.len(),
        Value::Array(list) => list.iter().map(bytes).sum::<usize>() + 2,
        Value::Object(fields) => fields.iter().map(|(k, v)| k.len() + bytes(v) + 4).sum::<usize>(),
        _ => 8,
    }
}
