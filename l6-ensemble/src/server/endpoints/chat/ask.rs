//! From a request to what the engine is asked, and to what is told of the answers.

use std::collections::HashSet;

use serde_json::{Map, Value};

use super::reader::Reader;
use crate::server::app::{App, Shared};
use crate::server::background::{self, SHORT};
use crate::server::backpressure::room_for;
use crate::server::chat::prompt::{Rendering, encode, render, text_of};
use crate::server::chat::reasoning::ReasoningParser;
use crate::server::chat::tools::{ToolParser, guide};
use crate::server::error::ApiError;
use crate::server::json::tree::written;
use crate::server::middleware::key::Tenant;
use crate::server::protocol::chat::{
    ChatFields, ChatMessage, ChatRequest, Tool, ToolChoice, ToolMode,
};
use crate::server::request::{Plan, plan};
use crate::server::tokenise::{could_fit, fits};

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

/// What a request asks for. A conversation is rendered and tokenized in the background, unless it is short.
///
/// # Errors
/// [`ApiError`] naming the field that is invalid.
pub async fn ask(app: &Shared, tenant: Tenant, request: ChatRequest) -> Result<Asked, ApiError> {
    let ChatRequest { own, sampling } = request;
    let max_tokens = max_tokens(&own)?.or(app.options.limits.default_chat_tokens);
    let mut plan = plan(app, tenant, &sampling, max_tokens, logprobs(app, &own)?)?;
    drop(sampling);
    plan.bound_logprobs(app, plan.samples as usize)?;
    room_for(app, plan.samples as usize)?;
    plan.template.continues = own.continue_final_message == Some(true);
    let bytes = length(&own);
    let make = move |app: &App| asked(app, plan, own);
    if bytes > SHORT { background::run(app, bytes, make).await? } else { make(app) }
}

fn asked(app: &App, mut plan: Plan, mut own: ChatFields) -> Result<Asked, ApiError> {
    let calling = calling(&mut own)?;
    if let Some(calls) = &calling
        && let Some(guide) = calls.guide(app)?
    {
        if plan.template.guide.is_some() {
            let message = "tool_choice: the answer cannot follow a guide and call a tool: ask for one of them";
            return Err(ApiError::param("tool_choice", message));
        }
        plan.template.guide = Some(guide.into());
    }
    let calls_end = !matches!(own.tool_choice, Some(ToolChoice::Named(_)));
    let guided = plan.template.guide.is_some();
    let thoughts = own.include_reasoning != Some(false);
    let parser = calling.as_ref().map(|calls| (calls.parser(app), calls.most()));
    let tools = calling.map_or_else(Vec::new, |calls| calls.tools);
    let Prompt { tokens, reasoning } = prompt(app, own, &tools, guided)?;
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
        let closed = app.options.disable_additional_properties;
        guide(app.model.tools, &self.tools, self.choice.as_ref(), self.parallel, closed)
    }

    fn parser(&self, app: &App) -> ToolParser {
        ToolParser::new(app.model.tools, &self.tools, self.choice.as_ref())
    }

    /// The most calls in one answer.
    fn most(&self) -> usize {
        if self.parallel { usize::MAX } else { 1 }
    }
}

/// Maximum number of tools, of bytes of a tool's name, and of all names: each answer's parser knows them.
const MAX_TOOLS: usize = 1024;
const MAX_TOOL_NAME: usize = 256;
const MAX_TOOL_NAMES: usize = 64 << 10;

/// What the request says of tools; `None`: nothing may be called. The prompt then tells of no tools either, which is the
/// surest way.
fn calling(own: &mut ChatFields) -> Result<Option<Calling>, ApiError> {
    let tools = own.tools.take().unwrap_or_default();
    let wrong = |path: String, why: String| {
        let message = format!("{path}: {why}");
        Err(ApiError::param(path, message))
    };
    if tools.len() > MAX_TOOLS {
        return wrong("tools".into(), format!("{} tools; there may be {MAX_TOOLS}", tools.len()));
    }
    let (mut names, mut bytes) = (HashSet::new(), 0);
    for (at, tool) in tools.iter().enumerate() {
        let name = tool.function.name.as_str();
        bytes += name.len();
        let why = if name.len() > MAX_TOOL_NAME {
            format!("it has {} bytes; a name may have {MAX_TOOL_NAME}", name.len())
        } else if bytes > MAX_TOOL_NAMES {
            format!("all names together have more than {MAX_TOOL_NAMES} bytes: shorten them")
        } else if !names.insert(name) {
            format!("`{name}` is there already: give it another name")
        } else {
            continue;
        };
        return wrong(format!("tools[{at}].function.name"), why);
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

fn prompt(app: &App, own: ChatFields, tools: &[Tool], guided: bool) -> Result<Prompt, ApiError> {
    let open = own.continue_final_message == Some(true);
    if open && own.add_generation_prompt == Some(true) {
        let message = "add_generation_prompt: a message that is continued has its head already: ask for one of them";
        return Err(ApiError::param("add_generation_prompt", message));
    }
    let rendering = Rendering {
        tools,
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
fn length(own: &ChatFields) -> usize {
    let object = |fields: &Map<String, Value>| fields.values().map(written).sum::<usize>();
    let tool = |tool: &Tool| {
        let function = &tool.function;
        64 + function.description.as_ref().map_or(0, String::len)
            + function.parameters.as_ref().map_or(0, written)
    };
    let documents = own.documents.iter().flatten().map(object).sum::<usize>();
    documents
        + own.messages.iter().map(ChatMessage::bytes).sum::<usize>()
        + own.tools.iter().flatten().map(tool).sum::<usize>()
        + own.chat_template_kwargs.as_ref().map_or(0, object)
}
