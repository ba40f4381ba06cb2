//! From what a client says to what an engine is asked.

use std::collections::BTreeMap;
use std::sync::Arc;

use l4_sampler::guide::GuideSpec;
use l4_sampler::logprobs::LogprobsRequest;
use l4_sampler::philox::fresh_seed;
use l4_sampler::stop::StopRules;
use l4_sampler::{ParamError, SamplingParams};
use l5_scheduler::{EngineRequest, Job};
use serde_json::Value;

use super::app::App;
use super::error::{ApiError, quoted};
use super::json::tree;
use super::middleware::key::Tenant;
use super::protocol::common::{ResponseFormat, Sampling, Stop};

/// What no request needs more of, and what the engine would lose time over.
const MOST_STOPS: usize = 64;
const MOST_STOP_BYTES: usize = 4096;
const MOST_STOP_TOKENS: usize = 1024;

/// Maximum number of bytes of a salt or a job's id, of which every sample of a request has a copy.
const MAX_NAME_BYTES: usize = 512;

/// Maximum number of bytes of a schema that is given as text.
const MAX_SCHEMA_TEXT: usize = 256 << 10;

/// Maximum number of log probabilities that a request may ask for: tokens, times those that are told for each, times
/// choices. They wait in memory for a client that does not read.
const MAX_LOGPROBS: usize = 1 << 20;

/// What all answers to one request have in common.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Everything but the prompt and the number of the sample.
    pub template: EngineRequest,
    /// Answers to each prompt that the client gets.
    pub n: u32,
    /// Answers to each prompt that are asked of the engine: more than `n`, where the best are wanted.
    pub samples: u32,
}

/// What a request's fields come to. `max_tokens` is what the endpoint makes of its own field; `logprobs` how many of the
/// likeliest tokens are told, if any.
///
/// # Errors
/// [`ApiError`] naming the field that cannot be meant.
pub fn plan(
    app: &App,
    tenant: Tenant,
    sampling: &Sampling,
    max_tokens: Option<usize>,
    logprobs: Option<usize>,
) -> Result<Plan, ApiError> {
    let defaults = &app.model.defaults;
    let off = SamplingParams::default();
    let vocab = app.engine.model().vocab;
    refuse(sampling)?;
    let top_k = match sampling.top_k {
        None => defaults.top_k.unwrap_or(off.top_k),
        Some(-1 | 0) => 0,
        Some(k) => usize::try_from(k).map_err(|_| {
            ApiError::param("top_k", format!("top_k: {k} should be -1, 0 or above"))
        })?,
    };
    let params = SamplingParams {
        temperature: sampling.temperature.or(defaults.temperature).unwrap_or(off.temperature),
        top_p: sampling.top_p.or(defaults.top_p).unwrap_or(off.top_p),
        top_k,
        min_p: sampling.min_p.or(defaults.min_p).unwrap_or(off.min_p),
        typical_p: sampling.typical_p.unwrap_or(off.typical_p),
        repetition_penalty: sampling
            .repetition_penalty
            .or(defaults.repetition_penalty)
            .unwrap_or(off.repetition_penalty),
        presence_penalty: sampling.presence_penalty.unwrap_or(off.presence_penalty),
        frequency_penalty: sampling.frequency_penalty.unwrap_or(off.frequency_penalty),
        min_tokens: sampling.min_tokens.unwrap_or(0),
        logit_bias: logit_bias(sampling, vocab)?,
        allowed_tokens: allowed_tokens(sampling, vocab)?,
        logprobs: logprobs.map(|top| LogprobsRequest { top, ..Default::default() }),
        ..off
    };
    let stop = StopRules {
        ignore_eos: sampling.ignore_eos.unwrap_or(false),
        token_ids: sampling.stop_token_ids.clone().unwrap_or_default(),
        strings: match sampling.stop.clone() {
            None => Vec::new(),
            Some(Stop::One(text)) => vec![text],
            Some(Stop::Many(texts)) => texts,
        },
        include_stop_str: sampling.include_stop_str_in_output.unwrap_or(false),
        special_tokens: sampling.skip_special_tokens == Some(false),
        min_tokens: params.min_tokens,
        // As in vLLM, the model's own figure is the most that anybody gets.
        max_tokens: max_tokens.unwrap_or(usize::MAX).min(defaults.max_tokens.unwrap_or(usize::MAX)),
        ..StopRules::default()
    };
    params.validate(vocab).and_then(|()| stop.validate(vocab)).map_err(blame)?;
    let n = sampling.n.unwrap_or(1);
    if n == 0 || n as usize > app.options.limits.answers {
        let most = app.options.limits.answers;
        return Err(ApiError::param("n", format!("n: {n} should be from 1 to {most}")));
    }
    let template = EngineRequest {
        params: params.into(),
        stop,
        guide: guide(app, sampling)?.map(Into::into),
        seed: sampling.seed.map_or_else(fresh_seed, i64::cast_unsigned),
        priority: sampling.priority.unwrap_or(0).max(app.options.min_priority),
        cache_salt: tenant.salt(sampling.cache_salt.clone()),
        job: sampling
            .job_id
            .clone()
            .map(|id| Job { id, last_step: sampling.is_last_step.unwrap_or(false) }),
        ..EngineRequest::default()
    };
    Ok(Plan { template, n, samples: n })
}

impl Plan {
    /// Whether so many answers have few enough log probabilities.
    ///
    /// # Errors
    /// [`ApiError`] that says what to ask for instead.
    pub fn bound_logprobs(&self, app: &App, answers: usize) -> Result<(), ApiError> {
        let Some(asked) = &self.template.params.logprobs else { return Ok(()) };
        let tokens = self.template.stop.max_tokens.min(app.model.max_model_len);
        let all = tokens.saturating_mul(asked.top + 1).saturating_mul(answers);
        if all <= MAX_LOGPROBS {
            return Ok(());
        }
        let message = format!(
            "logprobs: {answers} choices of {tokens} tokens with {} log probabilities each are {all}, and a request may ask for {MAX_LOGPROBS}: lower max_tokens, logprobs or n",
            asked.top + 1
        );
        Err(ApiError::param("logprobs", message))
    }

    /// The request for one prompt, of which the engine is asked `samples`.
    pub fn for_prompt(&self, prompt: impl Into<Arc<[u32]>>) -> EngineRequest {
        EngineRequest { prompt: prompt.into(), ..self.template.clone() }
    }
}

/// What is wrong whatever the model is.
fn refuse(sampling: &Sampling) -> Result<(), ApiError> {
    if sampling.stream_options.is_some() && sampling.stream != Some(true) {
        let message =
            "stream_options: only a stream has them; say \"stream\": true, or leave them out";
        return Err(ApiError::param("stream_options", message));
    }
    let (stops, bytes) = match &sampling.stop {
        None => (0, 0),
        Some(Stop::One(text)) => (1, text.len()),
        Some(Stop::Many(texts)) => (texts.len(), texts.iter().map(String::len).sum()),
    };
    if stops > MOST_STOPS || bytes > MOST_STOP_BYTES {
        let message = format!(
            "stop: {stops} texts of {bytes} bytes; there may be {MOST_STOPS} of {MOST_STOP_BYTES} bytes together"
        );
        return Err(ApiError::param("stop", message));
    }
    let texts = [("cache_salt", &sampling.cache_salt), ("job_id", &sampling.job_id)];
    for (name, text) in texts {
        let bytes = text.as_ref().map_or(0, String::len);
        if bytes > MAX_NAME_BYTES {
            let message = format!("{name}: {bytes} bytes; it may have {MAX_NAME_BYTES}");
            return Err(ApiError::param(name, message));
        }
    }
    let tokens = sampling.stop_token_ids.as_ref().map_or(0, Vec::len);
    if tokens > MOST_STOP_TOKENS {
        let message = format!("stop_token_ids: {tokens} tokens; there may be {MOST_STOP_TOKENS}");
        return Err(ApiError::param("stop_token_ids", message));
    }
    Ok(())
}

/// A parameter's error with the name that the parameter has in requests.
fn blame(why: ParamError) -> ApiError {
    let param = match &why {
        ParamError::OutOfRange { name, .. } | ParamError::TokenOutOfRange { name, .. } => {
            match *name {
                "stop token_ids" => "stop_token_ids",
                "allowed_tokens" => "allowed_token_ids",
                name => name,
            }
        }
        ParamError::NothingAllowed => "allowed_token_ids",
        ParamError::EmptyStop | ParamError::StopWithoutText => "stop",
    };
    let message = why.to_string();
    let message = message.replace("allowed_tokens", "allowed_token_ids");
    ApiError::param(param, message.replace("stop token_ids", "stop_token_ids"))
}

/// Each token once, however its id is written.
fn logit_bias(sampling: &Sampling, vocab: usize) -> Result<Vec<(u32, f32)>, ApiError> {
    let given = sampling.logit_bias.as_ref();
    at_most("logit_bias", given.map_or(0, BTreeMap::len), vocab)?;
    let mut biases = BTreeMap::new();
    for (written, bias) in given.into_iter().flatten() {
        let wrong = |why: &str| {
            let path = format!("logit_bias.{}", quoted(written));
            let message = format!("{path}: {why}");
            Err(ApiError::param(path, message))
        };
        let Ok(id) = written.parse::<u32>() else {
            return wrong("the key must be a token id");
        };
        // OpenAI's range, to which vLLM clamps as well: 100 is as good as "always".
        if biases.insert(id, bias.clamp(-100.0, 100.0)).is_some() {
            return wrong("this token is there already, with its id written in another way");
        }
    }
    Ok(biases.into_iter().collect())
}

/// Each token once.
fn allowed_tokens(sampling: &Sampling, vocab: usize) -> Result<Option<Vec<u32>>, ApiError> {
    let Some(given) = &sampling.allowed_token_ids else { return Ok(None) };
    at_most("allowed_token_ids", given.len(), vocab)?;
    let mut allowed = given.clone();
    allowed.sort_unstable();
    allowed.dedup();
    Ok(Some(allowed))
}

fn at_most(name: &'static str, given: usize, vocab: usize) -> Result<(), ApiError> {
    if given <= vocab {
        return Ok(());
    }
    let message = format!("{name}: {given} tokens, and the model has {vocab}: name each once");
    Err(ApiError::param(name, message))
}

/// What the answer must look like, however it was said.
fn guide(app: &App, sampling: &Sampling) -> Result<Option<GuideSpec>, ApiError> {
    let closed = app.options.disable_additional_properties;
    let json = |schema: Value, closed: bool| match closed {
        true => GuideSpec::ClosedJsonSchema(schema),
        false => GuideSpec::JsonSchema(schema),
    };
    let mut specs = Vec::new();
    if let Some(schema) = &sampling.guided_json {
        specs.push(json(schema_of(schema, "guided_json")?, closed));
    }
    specs.extend(sampling.guided_regex.clone().map(GuideSpec::Regex));
    specs.extend(sampling.guided_choice.clone().map(GuideSpec::Choice));
    specs.extend(sampling.guided_grammar.clone().map(GuideSpec::Lark));
    if let Some(asked) = &sampling.structured_outputs {
        let refused = [
            ("whitespace_pattern", asked.whitespace_pattern.is_some()),
            ("structural_tag", asked.structural_tag.is_some()),
        ];
        if let Some((field, _)) = refused.iter().find(|(_, given)| *given) {
            let path = format!("structured_outputs.{field}");
            let message = format!("{path}: not supported: leave it out");
            return Err(ApiError::param(path, message));
        }
        if let Some(schema) = &asked.json {
            let closed = asked.disable_additional_properties.unwrap_or(closed);
            specs.push(json(schema_of(schema, "structured_outputs.json")?, closed));
        }
        specs.extend(asked.regex.clone().map(GuideSpec::Regex));
        specs.extend(asked.choice.clone().map(GuideSpec::Choice));
        specs.extend(asked.grammar.clone().map(GuideSpec::Lark));
        if asked.json_object == Some(true) {
            specs.push(any_object());
        }
    }
    match &sampling.response_format {
        None | Some(ResponseFormat::Text) => {}
        Some(ResponseFormat::JsonObject { schema }) => {
            let schema = schema.clone();
            specs.push(schema.map_or_else(any_object, |schema| json(schema, closed)));
        }
        Some(ResponseFormat::JsonSchema { json_schema }) => {
            let schema = json_schema.schema.clone();
            specs.push(schema.map_or_else(any_object, |schema| json(schema, closed)));
        }
    }
    match specs.len() {
        0 | 1 => Ok(specs.pop()),
        n => {
            let message = format!("the answer cannot follow {n} guides: ask for one");
            Err(ApiError::param("structured_outputs", message))
        }
    }
}

/// A schema, as an object or as its text.
fn schema_of(schema: &Value, path: &str) -> Result<Value, ApiError> {
    let Value::String(text) = schema else { return Ok(schema.clone()) };
    let wrong = |why: String| Err(ApiError::param(path, format!("{path}: {why}")));
    if text.len() > MAX_SCHEMA_TEXT {
        return wrong(format!("{} bytes; a schema may have {MAX_SCHEMA_TEXT}", text.len()));
    }
    tree::begin();
    tree::from_text(text).or_else(wrong)
}

/// OpenAI's json_object: an object of any shape.
fn any_object() -> GuideSpec {
    GuideSpec::JsonSchema(serde_json::json!({"type": "object"}))
}
