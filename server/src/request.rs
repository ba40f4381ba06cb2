//! From the sampling fields of a request to an [`EngineRequest`].

use std::collections::BTreeMap;
use std::sync::Arc;

use l4_sampler::guide::GuideSpec;
use l4_sampler::logprobs::LogprobsRequest;
use l4_sampler::philox::fresh_seed;
use l4_sampler::stop::StopRules;
use l4_sampler::{ParamError, SamplingParams};
use l5_scheduler::{EngineRequest, Job};
use l6_ensemble::DecodingPolicy;
use l6_ensemble::shadow::SHADOW_PRIORITY;
use serde_json::Value;

use super::adapters::NamedAdapter;
use super::backpressure::Admission;
use super::error::{ApiError, quoted};
use super::json::tree;
use super::lanes::LaneDefaults;
use super::middleware::key::Tenant;
use super::model::ServedModel;
use super::options::ServerOptions;
use super::protocol::common::{ResponseFormat, Sampling, Stop};
use super::protocol::routing::Routing;
use super::tokenise::Encoder;

/// Maximum number of stop strings, of their bytes together, and of stop tokens: the engine compares every new token
/// with them.
const MAX_STOP_STRINGS: usize = 64;
const MAX_STOP_BYTES: usize = 4096;
const MAX_STOP_TOKENS: usize = 1024;

/// Maximum number of bytes of a salt or a job's id, of which every sample of a request has a copy.
const MAX_NAME_BYTES: usize = 512;

/// Maximum number of bytes of a schema that is given as text.
const MAX_SCHEMA_BYTES: usize = 256 << 10;

/// Maximum number of log probabilities of a response: tokens, times log probabilities of each, times choices. They are
/// buffered in memory for a client that does not read.
const MAX_LOGPROBS: usize = 1 << 20;

/// Parts of the server that completions and chats use. Clones share everything.
#[derive(Clone)]
pub struct Generation {
    /// The model as clients see it.
    pub model: Arc<ServedModel>,
    /// Bounds and defaults of request fields.
    pub rules: RequestRules,
    /// Tokenizer of requests' texts.
    pub encoder: Encoder,
    /// Admission to the lane's queues.
    pub admission: Admission,
    /// Defaults of the lane's requests.
    pub defaults: Arc<LaneDefaults>,
    /// LoRA adapter that the request names as its model, if it does. The request has it when it is submitted.
    pub adapter: Option<NamedAdapter>,
}

impl Generation {
    /// Decoding policy of a request: its own, or the lane's if the request has no sampling fields of its own.
    pub fn policy(&self, sampling: &Sampling, routing: &Routing) -> Option<DecodingPolicy> {
        let samples = sampling.temperature.is_some()
            || sampling.top_p.is_some()
            || sampling.top_k.is_some()
            || sampling.min_p.is_some()
            || sampling.typical_p.is_some();
        let own = self.defaults.decoding_policy.filter(|_| !samples);
        routing.decoding_policy.map(DecodingPolicy::from).or(own)
    }
}

/// Bounds and defaults of request fields.
#[derive(Clone, Copy, Debug)]
pub struct RequestRules {
    /// Number of token ids of the model.
    pub vocab: usize,
    /// Maximum number of choices of a request: `n`, or prompts times `n`.
    pub max_choices: usize,
    /// Maximum number of likeliest tokens that are reported beside each.
    pub max_logprobs: usize,
    /// Tokens of a chat's completion where the request has no maximum. `None`: what the context leaves.
    pub default_chat_tokens: Option<usize>,
    /// Lowest (most urgent) priority: lower ones count as this.
    pub min_priority: i64,
    /// Whether schemas are closed: see [`ServerOptions::disable_additional_properties`].
    pub disable_additional_properties: bool,
}

impl RequestRules {
    /// The operator's rules for a model of `vocab` token ids.
    pub fn new(vocab: usize, options: &ServerOptions) -> Self {
        Self {
            vocab,
            max_choices: options.limits.choices,
            max_logprobs: options.limits.logprobs,
            default_chat_tokens: options.limits.default_chat_tokens,
            min_priority: options.min_priority,
            disable_additional_properties: options.disable_additional_properties,
        }
    }
}

/// Common part of all choices of one request.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Engine request without its prompt.
    pub template: EngineRequest,
    /// Number of choices for each prompt in the response.
    pub n: u32,
    /// Number of choices for each prompt that the engine generates: more than `n` with `best_of`.
    pub samples: u32,
}

/// Makes the plan of a request. `policy` stands for the sampling fields that the request leaves out. `max_tokens` comes from the endpoint's own field; `logprobs` is the number of likeliest
/// tokens that are reported beside each, if any.
///
/// # Errors
/// [`ApiError`] that names the invalid field.
pub fn plan(
    model: &ServedModel,
    rules: &RequestRules,
    tenant: Tenant,
    sampling: &Sampling,
    policy: Option<DecodingPolicy>,
    max_tokens: Option<usize>,
    logprobs: Option<usize>,
) -> Result<Plan, ApiError> {
    let defaults = &model.defaults.with_policy(policy);
    let off = SamplingParams::default();
    let vocab = rules.vocab;
    check(sampling)?;
    let top_k = match sampling.top_k {
        None => defaults.top_k.unwrap_or(off.top_k),
        Some(-1 | 0) => 0,
        Some(k) => usize::try_from(k).map_err(|_| {
            ApiError::param("top_k", format!("`top_k` must be -1, 0 or greater, got {k}"))
        })?,
    };
    let params = SamplingParams {
        temperature: sampling.temperature.or(defaults.temperature).unwrap_or(off.temperature),
        top_p: sampling.top_p.or(defaults.top_p).unwrap_or(off.top_p),
        top_k,
        min_p: sampling.min_p.or(defaults.min_p).unwrap_or(off.min_p),
        typical_p: sampling.typical_p.or(defaults.typical_p).unwrap_or(off.typical_p),
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
        // As in vLLM, the model's own maximum bounds that of a request.
        max_tokens: max_tokens.unwrap_or(usize::MAX).min(defaults.max_tokens.unwrap_or(usize::MAX)),
        ..StopRules::default()
    };
    params.validate(vocab).and_then(|()| stop.validate(vocab)).map_err(param_error)?;
    let n = sampling.n.unwrap_or(1);
    if n == 0 || n as usize > rules.max_choices {
        let most = rules.max_choices;
        return Err(ApiError::param("n", format!("`n` must be between 1 and {most}, got {n}")));
    }
    let template = EngineRequest {
        params: params.into(),
        stop,
        guide: guide(rules, sampling)?.map(Into::into),
        seed: sampling.seed.map_or_else(fresh_seed, i64::cast_unsigned),
        // The number of shadows is no client's.
        priority: sampling.priority.unwrap_or(0).max(rules.min_priority).min(SHADOW_PRIORITY - 1),
        cache_salt: tenant.salt(sampling.cache_salt.clone()),
        job: job(tenant, sampling),
        max_drafts: sampling.num_speculative_tokens,
        ..EngineRequest::default()
    };
    Ok(Plan { template, n, samples: n })
}

/// The step of a job that a request is.
fn job(tenant: Tenant, sampling: &Sampling) -> Option<Job> {
    let id = tenant.job_id(sampling.job_id()?);
    Some(Job { id, last_step: sampling.is_last_step() })
}

impl Plan {
    /// Checks the number of log probabilities of `choices` choices.
    ///
    /// # Errors
    /// [`ApiError`] if there are too many.
    pub fn check_num_logprobs(&self, model: &ServedModel, choices: usize) -> Result<(), ApiError> {
        let Some(logprobs) = &self.template.params.logprobs else { return Ok(()) };
        let tokens = self.template.stop.max_tokens.min(model.max_model_len);
        let all = tokens.saturating_mul(logprobs.top + 1).saturating_mul(choices);
        if all <= MAX_LOGPROBS {
            return Ok(());
        }
        let message = format!(
            "`logprobs`: {choices} choices of {tokens} tokens with {} log probabilities each are {all} log \
             probabilities, but a request may have at most {MAX_LOGPROBS}. Reduce `max_tokens`, `logprobs` or `n`.",
            logprobs.top + 1
        );
        Err(ApiError::param("logprobs", message))
    }

    /// Engine request for one prompt.
    pub fn for_prompt(&self, prompt: impl Into<Arc<[u32]>>) -> EngineRequest {
        EngineRequest { prompt: prompt.into(), ..self.template.clone() }
    }
}

/// Checks what does not depend on the model.
fn check(sampling: &Sampling) -> Result<(), ApiError> {
    if sampling.stream_options.is_some() && sampling.stream != Some(true) {
        let message = "`stream_options` is only allowed when `stream` is true. Set `stream` to true, or remove it.";
        return Err(ApiError::param("stream_options", message));
    }
    let (stops, bytes) = match &sampling.stop {
        None => (0, 0),
        Some(Stop::One(text)) => (1, text.len()),
        Some(Stop::Many(texts)) => (texts.len(), texts.iter().map(String::len).sum()),
    };
    if stops > MAX_STOP_STRINGS || bytes > MAX_STOP_BYTES {
        let message = format!(
            "`stop` must have at most {MAX_STOP_STRINGS} strings of {MAX_STOP_BYTES} bytes in total, got {stops} \
             strings of {bytes} bytes"
        );
        return Err(ApiError::param("stop", message));
    }
    let nested_job = sampling.extra_body.as_ref().and_then(|extra| extra.job_id.as_ref());
    let names = [
        ("cache_salt", sampling.cache_salt.as_ref(), 0),
        ("job_id", sampling.job_id.as_ref(), 1),
        ("extra_body.job_id", nested_job, 1),
    ];
    for (path, name, least) in names {
        let Some(bytes) = name.map(String::len) else { continue };
        if bytes > MAX_NAME_BYTES {
            let message =
                format!("`{path}` must be at most {MAX_NAME_BYTES} bytes long, got {bytes} bytes");
            return Err(ApiError::param(path, message));
        }
        if bytes < least {
            let message = format!("`{path}` must not be empty: name the job, or leave it out");
            return Err(ApiError::param(path, message));
        }
    }
    let tokens = sampling.stop_token_ids.as_ref().map_or(0, Vec::len);
    if tokens > MAX_STOP_TOKENS {
        let message =
            format!("`stop_token_ids` must have at most {MAX_STOP_TOKENS} ids, got {tokens}");
        return Err(ApiError::param("stop_token_ids", message));
    }
    Ok(())
}

/// Makes a parameter's error one of the request's field.
fn param_error(why: ParamError) -> ApiError {
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

/// Biases by token, each token once.
fn logit_bias(sampling: &Sampling, vocab: usize) -> Result<Vec<(u32, f32)>, ApiError> {
    let given = sampling.logit_bias.as_ref();
    check_len("logit_bias", given.map_or(0, BTreeMap::len), vocab)?;
    let mut biases = BTreeMap::new();
    for (written, bias) in given.into_iter().flatten() {
        let wrong = |why: &str| {
            let path = format!("logit_bias.{}", quoted(written));
            let message = format!("`{path}` {why}");
            Err(ApiError::param(path, message))
        };
        let Ok(id) = written.parse::<u32>() else {
            return wrong("must have a token id as its key");
        };
        // OpenAI's range, to which vLLM clamps as well.
        if biases.insert(id, bias.clamp(-100.0, 100.0)).is_some() {
            return wrong("names a token a second time, with its id in another notation");
        }
    }
    Ok(biases.into_iter().collect())
}

/// Allowed tokens, each once.
fn allowed_tokens(sampling: &Sampling, vocab: usize) -> Result<Option<Vec<u32>>, ApiError> {
    let Some(given) = &sampling.allowed_token_ids else { return Ok(None) };
    check_len("allowed_token_ids", given.len(), vocab)?;
    let mut allowed = given.clone();
    allowed.sort_unstable();
    allowed.dedup();
    Ok(Some(allowed))
}

fn check_len(name: &'static str, given: usize, vocab: usize) -> Result<(), ApiError> {
    if given <= vocab {
        return Ok(());
    }
    let message = format!(
        "`{name}` has {given} tokens, but the model's vocabulary has {vocab}: name each token once"
    );
    Err(ApiError::param(name, message))
}

/// Guide of the request, from the field that constrains the output.
fn guide(rules: &RequestRules, sampling: &Sampling) -> Result<Option<GuideSpec>, ApiError> {
    let closed = rules.disable_additional_properties;
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
    if let Some(outputs) = &sampling.structured_outputs {
        let unsupported = [
            ("whitespace_pattern", outputs.whitespace_pattern.is_some()),
            ("structural_tag", outputs.structural_tag.is_some()),
        ];
        if let Some((field, _)) = unsupported.iter().find(|(_, given)| *given) {
            let path = format!("structured_outputs.{field}");
            let message = format!("`{path}` is not supported by this server. Remove it.");
            return Err(ApiError::param(path, message));
        }
        if let Some(schema) = &outputs.json {
            let closed = outputs.disable_additional_properties.unwrap_or(closed);
            specs.push(json(schema_of(schema, "structured_outputs.json")?, closed));
        }
        specs.extend(outputs.regex.clone().map(GuideSpec::Regex));
        specs.extend(outputs.choice.clone().map(GuideSpec::Choice));
        specs.extend(outputs.grammar.clone().map(GuideSpec::Lark));
        if outputs.json_object == Some(true) {
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
            let message = format!(
                "Only one structured output constraint is allowed per request, got {n}: use one of \
                 `structured_outputs`, `response_format` and the `guided_*` fields"
            );
            Err(ApiError::param("structured_outputs", message))
        }
    }
}

/// A schema that is given as a value or as its text.
fn schema_of(schema: &Value, path: &str) -> Result<Value, ApiError> {
    let Value::String(text) = schema else { return Ok(schema.clone()) };
    let wrong = |why: String| Err(ApiError::param(path, format!("`{path}` {why}")));
    if text.len() > MAX_SCHEMA_BYTES {
        return wrong(format!(
            "must be at most {MAX_SCHEMA_BYTES} bytes long, got {} bytes",
            text.len()
        ));
    }
    tree::reset_limit();
    tree::from_text(text).or_else(|why| wrong(format!("is not a valid JSON schema: {why}")))
}

/// Guide of OpenAI's `json_object`: any object.
fn any_object() -> GuideSpec {
    GuideSpec::JsonSchema(serde_json::json!({"type": "object"}))
}

#[cfg(test)]
mod tests {
    use l5_scheduler::{JobKey, Request};
    use serde_json::json;

    use super::*;

    /// Key of the job that a tenant's request is a step of, and whether it is the last step.
    fn step(tenant: Tenant, body: Value) -> Option<(JobKey, bool)> {
        let sampling: Sampling = serde_json::from_value(body).unwrap();
        check(&sampling).unwrap();
        let cache_salt = tenant.salt(sampling.cache_salt.clone());
        let job = job(tenant, &sampling);
        let last_step = job.as_ref()?.last_step;
        Some((Request { cache_salt, job, ..Request::default() }.job_key()?, last_step))
    }

    #[test]
    fn a_job_is_named_by_the_request_or_by_a_nested_extra_body() {
        let a = |last_step| Some((JobKey { tenant: None, id: "a".to_owned() }, last_step));
        for (body, expected) in [
            (json!({"job_id": "a"}), a(false)),
            (json!({"job_id": "a", "is_last_step": true}), a(true)),
            (json!({"extra_body": {"job_id": "a", "is_last_step": true, "top_k": 3}}), a(true)),
            (json!({"job_id": "a", "extra_body": {"job_id": "b"}}), a(false)),
            (json!({"job_id": "a", "extra_body": {"is_last_step": true}}), a(true)),
            (
                json!({"job_id": "a", "is_last_step": false, "extra_body": {"is_last_step": true}}),
                a(false),
            ),
            (json!({"is_last_step": true}), None),
            (json!({"extra_body": {}}), None),
            (json!({"extra_body": null, "job_id": null}), None),
        ] {
            assert_eq!(step(Tenant::default(), body.clone()), expected, "{body}");
        }
    }

    #[test]
    fn a_stranger_who_names_a_job_names_another_one() {
        for shares_prefix_cache in [false, true] {
            let of = |key| Tenant::of(key, shares_prefix_cache);
            let own = step(of(1), json!({"job_id": "a"}));
            assert_eq!(own, step(of(1), json!({"job_id": "a"})), "a later step");
            // Neither by another key, nor by another salt, nor by the name that another key's job has within.
            let within = own.clone().unwrap().0.id;
            for stranger in [
                step(of(2), json!({"job_id": "a"})),
                step(of(2), json!({"job_id": within})),
                step(of(1), json!({"job_id": "a", "cache_salt": "x"})),
            ] {
                assert_ne!(stranger, own, "shares the prefix cache: {shares_prefix_cache}");
            }
        }
        let salted = |salt| step(Tenant::default(), json!({"job_id": "a", "cache_salt": salt}));
        assert_ne!(salted("x"), salted("y"));
    }

    #[test]
    fn names_of_jobs_have_bounds() {
        let refused = |body: Value| {
            let sampling: Sampling = serde_json::from_value(body).unwrap();
            check(&sampling).err().map(|error| error.to_string())
        };
        let longest = "j".repeat(MAX_NAME_BYTES);
        assert_eq!(refused(json!({"job_id": longest, "extra_body": {"job_id": longest}})), None);
        let longer = format!("{longest}j");
        for (body, why) in [
            (json!({"job_id": longer}), "`job_id` must be at most 512 bytes long, got 513 bytes"),
            (json!({"extra_body": {"job_id": longer}}), "`extra_body.job_id` must be at most 512"),
            (json!({"job_id": ""}), "`job_id` must not be empty"),
            (json!({"extra_body": {"job_id": ""}}), "`extra_body.job_id` must not be empty"),
        ] {
            let message = refused(body).unwrap_or_default();
            assert!(message.contains(why), "{message}");
        }
    }
}
