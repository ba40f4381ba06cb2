//! Prepares a chat request for the engine: its prompt, its plan, and a parser of the output.

use std::collections::HashSet;
use std::sync::Arc;

use l4_sampler::guide::GuideSpec;
use l4_sampler::output::tools::guide;
use l4_sampler::output::{self, OutputParser, ReasoningParser, ToolDefinition, ToolParser};
use serde_json::{Map, Value};

use crate::background::MAX_SHORT_BYTES;
use crate::chat::prompt::{Rendering, encode, render, text_of};
use crate::error::ApiError;
use crate::json::tree::written;
use crate::middleware::key::Tenant;
use crate::model::ServedModel;
use crate::protocol::chat::{ChatFields, ChatMessage, ChatRequest, Tool, ToolChoice, ToolMode};
use crate::request::{Generation, Plan, RequestRules, plan};

/// A valid request, ready for the engine.
pub struct PreparedChat {
    /// Engine request without its prompt.
    pub plan: Plan,
    /// The prompt.
    pub prompt: Vec<u32>,
    /// Parses a choice's output, from its beginning.
    pub parser: OutputParser,
    /// Whether a tool call makes `tool_calls` the finish_reason. With a tool that the request names it stays `stop`,
    /// as at OpenAI.
    pub calls_end: bool,
}

/// Checks a request, renders and tokenizes its conversation: in the background, unless it is short.
///
/// # Errors
/// [`ApiError`] naming the field that is invalid.
pub async fn prepare(
    generation: &Generation,
    tenant: Tenant,
    request: ChatRequest,
) -> Result<PreparedChat, ApiError> {
    let Generation { model, rules, encoder, admission, .. } = generation;
    let ChatRequest { mut own, sampling, routing } = request;
    let max_tokens = max_tokens(&own)?.or(rules.default_chat_tokens);
    let policy = generation.policy(&sampling, &routing);
    let logprobs = logprobs(rules, &own)?;
    let mut plan = plan(model, rules, tenant, &sampling, policy, max_tokens, logprobs)?;
    plan.template.deadline = routing.deadline();
    generation.defaults.add_system_prompt(&mut own.messages);
    drop(sampling);
    plan.check_num_logprobs(model, plan.samples as usize)?;
    admission.room_for(plan.samples as usize)?;
    plan.template.continues = own.continue_final_message == Some(true);
    let bytes = estimated_bytes(&own);
    if bytes <= MAX_SHORT_BYTES {
        return finish(generation, plan, own);
    }
    let generation = generation.clone();
    encoder.background().run(bytes, move || finish(&generation, plan, own)).await?
}

/// The slow part of [`prepare`]: renders and tokenizes.
fn finish(
    generation: &Generation,
    mut plan: Plan,
    mut own: ChatFields,
) -> Result<PreparedChat, ApiError> {
    let Generation { model, rules, .. } = generation;
    let calling = calling(&mut own)?;
    if let Some(calls) = &calling
        && let Some(guide) = calls.guide(model, rules)?
    {
        if plan.template.guide.is_some() {
            let message = "`tool_choice` cannot be combined with a structured output constraint. Remove one of them.";
            return Err(ApiError::param("tool_choice", message));
        }
        plan.template.guide = Some(guide.into());
    }
    let calls_end = !matches!(own.tool_choice, Some(ToolChoice::Named(_)));
    let guided = plan.template.guide.is_some();
    let include_reasoning = own.include_reasoning != Some(false);
    let tool_parser = calling.as_ref().map(|calls| (calls.parser(model), calls.max_calls()));
    let tools = calling.map_or_else(Vec::new, |calls| calls.tools);
    let Prompt { tokens, reasoning } = prompt(generation, own, &tools, guided)?;
    let parser = OutputParser::plain(tokens.len()).with_reasoning(reasoning, include_reasoning);
    let parser = match tool_parser {
        Some((tools, most)) => parser.with_tools(tools, most),
        None => parser,
    };
    if plan.template.job.is_some() {
        plan.template.calls = Some(Arc::new(parser.call_format()));
    }
    Ok(PreparedChat { plan, prompt: tokens, parser, calls_end })
}

fn max_tokens(own: &ChatFields) -> Result<Option<usize>, ApiError> {
    let (path, given) = match own.max_completion_tokens {
        Some(given) => ("max_completion_tokens", Some(given)),
        None => ("max_tokens", own.max_tokens),
    };
    match given {
        Some(0) => Err(ApiError::param(path, format!("`{path}` must be at least 1, got 0"))),
        given => Ok(given),
    }
}

/// Number of likeliest tokens that are reported beside each, if any.
fn logprobs(rules: &RequestRules, own: &ChatFields) -> Result<Option<usize>, ApiError> {
    let most = rules.max_logprobs;
    let wrong = |why: String| Err(ApiError::param("top_logprobs", format!("`top_logprobs` {why}")));
    match (own.logprobs == Some(true), own.top_logprobs) {
        (_, Some(top)) if top > most => wrong(format!("must be between 0 and {most}, got {top}")),
        (false, None | Some(0)) => Ok(None),
        (false, Some(_)) => wrong("is only allowed when `logprobs` is true".into()),
        (true, top) => Ok(Some(top.unwrap_or(0))),
    }
}

/// Tools of a request whose choices may call some.
struct Calling {
    tools: Vec<Tool>,
    choice: Option<ToolChoice>,
    parallel: bool,
}

impl Calling {
    fn guide(
        &self,
        model: &ServedModel,
        rules: &RequestRules,
    ) -> Result<Option<GuideSpec>, ApiError> {
        for (at, tool) in self.tools.iter().enumerate() {
            if tool.kind != "function" {
                let path = format!("tools[{at}].type");
                let message = format!("`{path}` must be \"function\", got `{}`", tool.kind);
                return Err(ApiError::param(path, message));
            }
        }
        let closed = rules.disable_additional_properties;
        let (format, choice) = (model.tools, self.choice());
        Ok(guide(format, &self.definitions(), &choice, self.parallel, closed)?)
    }

    fn parser(&self, model: &ServedModel) -> ToolParser {
        ToolParser::new(model.tools, &self.definitions(), &self.choice())
    }

    fn definitions(&self) -> Vec<ToolDefinition<'_>> {
        let functions = self.tools.iter().map(|tool| &tool.function);
        functions
            .map(|f| ToolDefinition { name: &f.name, parameters: f.parameters.as_ref() })
            .collect()
    }

    fn choice(&self) -> output::ToolChoice {
        match &self.choice {
            None | Some(ToolChoice::Mode(ToolMode::Auto)) => output::ToolChoice::Auto,
            Some(ToolChoice::Mode(ToolMode::None)) => output::ToolChoice::None,
            Some(ToolChoice::Mode(ToolMode::Required)) => output::ToolChoice::Required,
            Some(ToolChoice::Named(named)) => {
                output::ToolChoice::Named(named.function.name.clone())
            }
        }
    }

    /// Maximum number of calls in one choice.
    fn max_calls(&self) -> usize {
        if self.parallel { usize::MAX } else { 1 }
    }
}

/// Maximum number of tools, of bytes of a tool's name, and of bytes of all names: each choice's parser has a copy.
const MAX_TOOLS: usize = 1024;
const MAX_TOOL_NAME_BYTES: usize = 256;
const MAX_TOOL_NAMES_BYTES: usize = 64 << 10;

/// Tools that may be called; `None` if none may. The prompt then has no tools either.
fn calling(own: &mut ChatFields) -> Result<Option<Calling>, ApiError> {
    let tools = own.tools.take().unwrap_or_default();
    let wrong = |path: String, why: String| {
        let message = format!("`{path}` {why}");
        Err(ApiError::param(path, message))
    };
    if tools.len() > MAX_TOOLS {
        return wrong(
            "tools".into(),
            format!("must have at most {MAX_TOOLS} tools, got {}", tools.len()),
        );
    }
    let (mut names, mut bytes) = (HashSet::new(), 0);
    for (at, tool) in tools.iter().enumerate() {
        let name = tool.function.name.as_str();
        bytes += name.len();
        let why = if name.len() > MAX_TOOL_NAME_BYTES {
            format!("must be at most {MAX_TOOL_NAME_BYTES} bytes long, got {}", name.len())
        } else if bytes > MAX_TOOL_NAMES_BYTES {
            format!(
                "exceeds the {MAX_TOOL_NAMES_BYTES} bytes that all names of tools may have together"
            )
        } else if !names.insert(name) {
            format!("must be unique, but `{name}` is the name of an earlier tool")
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

fn prompt(
    generation: &Generation,
    own: ChatFields,
    tools: &[Tool],
    guided: bool,
) -> Result<Prompt, ApiError> {
    let Generation { model, encoder, .. } = generation;
    let open = own.continue_final_message == Some(true);
    if open && own.add_generation_prompt == Some(true) {
        let message = "`add_generation_prompt` and `continue_final_message` cannot both be true.";
        return Err(ApiError::param("add_generation_prompt", message));
    }
    let rendering = Rendering {
        tools,
        variables: variables(&own),
        add_generation_prompt: !open && own.add_generation_prompt != Some(false),
        continue_final_message: open,
    };
    let text = render(model, &own.messages, &rendering)?;
    let format = model.reasoning;
    let reasoning = match own.messages.last().filter(|_| open) {
        Some(last) => {
            let begun = text_of(own.messages.len() - 1, last.content.as_ref())?;
            ReasoningParser::within(format, begun.as_deref().unwrap_or_default())
        }
        // Guided output follows its guide from the first token: it does not continue reasoning that the template began.
        None if guided => ReasoningParser::new(format, ""),
        None => ReasoningParser::new(format, &text),
    };
    encoder.check_text(&text, "messages")?;
    let tokens = encode(model, &text)?;
    encoder.check_prompt(&tokens, "messages")?;
    Ok(Prompt { tokens, reasoning })
}

/// Variables of the template beside messages and tools. Those of `chat_template_kwargs` take precedence.
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

/// Estimated number of bytes that the template writes.
pub(super) fn estimated_bytes(own: &ChatFields) -> usize {
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
