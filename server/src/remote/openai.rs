//! OpenAI's completions with the token ids that vLLM and strata add to them (`return_token_ids`).

use std::collections::BTreeMap;

use l4_sampler::SamplingParams;
use l4_sampler::stop::StopRules;
use l5_scheduler::{EngineRequest, FinishReason};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::error::RemoteError;
use super::wire::{Decoder, Event, Wire, malformed, message, odd_finish, seed_of};

/// `POST /v1/completions`.
pub(super) struct OpenAi;

/// A completion request, with all sampling parameters: the defaults of the other server are its own.
#[derive(Debug, Serialize)]
struct Body<'a> {
    model: &'a str,
    prompt: &'a [u32],
    stream: bool,
    return_token_ids: bool,
    max_tokens: usize,
    seed: i64,
    temperature: f32,
    top_p: f32,
    /// -1: all tokens.
    top_k: i64,
    min_p: f32,
    typical_p: f32,
    presence_penalty: f32,
    frequency_penalty: f32,
    repetition_penalty: f32,
    min_tokens: usize,
    ignore_eos: bool,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    logit_bias: BTreeMap<u32, f32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    allowed_token_ids: Option<&'a [u32]>,
    #[serde(skip_serializing_if = "<[u32]>::is_empty")]
    stop_token_ids: &'a [u32],
    #[serde(skip_serializing_if = "Option::is_none")]
    cache_salt: Option<&'a str>,
}

#[derive(Deserialize)]
struct Chunk {
    #[serde(default)]
    choices: Vec<Choice>,
    #[serde(default)]
    error: Option<Value>,
}

#[derive(Deserialize)]
struct Choice {
    #[serde(default)]
    text: Option<String>,
    #[serde(default)]
    token_ids: Option<Vec<u32>>,
    #[serde(default)]
    finish_reason: Option<String>,
}

impl Wire for OpenAi {
    fn completions(&self, base: &str, _: &str) -> String {
        format!("{base}/completions")
    }

    fn check(&self, _: &EngineRequest) -> Result<(), &'static str> {
        Ok(())
    }

    fn body(&self, model: &str, request: &EngineRequest, choice: u32) -> Vec<u8> {
        let EngineRequest { prompt, params, stop, seed, cache_salt, .. } = request;
        let StopRules { token_ids, max_tokens, ignore_eos, .. } = stop;
        let params: &SamplingParams = params;
        let mut logit_bias = BTreeMap::new();
        for (id, bias) in &params.logit_bias {
            *logit_bias.entry(*id).or_insert(0.0) += bias;
        }
        let body = Body {
            model,
            prompt,
            stream: true,
            return_token_ids: true,
            max_tokens: *max_tokens,
            seed: seed_of(*seed, choice).cast_signed(),
            temperature: params.temperature,
            top_p: params.top_p,
            top_k: if params.top_k == 0 { -1 } else { params.top_k as i64 },
            min_p: params.min_p,
            typical_p: params.typical_p,
            presence_penalty: params.presence_penalty,
            frequency_penalty: params.frequency_penalty,
            repetition_penalty: params.repetition_penalty,
            min_tokens: params.min_tokens,
            ignore_eos: *ignore_eos,
            logit_bias,
            allowed_token_ids: params.allowed_tokens.as_deref(),
            stop_token_ids: token_ids,
            cache_salt: cache_salt.as_deref().filter(|salt| !salt.is_empty()),
        };
        // Numbers and strings: nothing in it can fail to be written.
        serde_json::to_vec(&body).unwrap_or_default()
    }

    fn decoder(&self) -> Box<dyn Decoder> {
        Box::new(Chunks)
    }
}

/// Decoder of the chunks of a completion.
struct Chunks;

impl Decoder for Chunks {
    fn decode(&mut self, data: &[u8]) -> Result<Option<Event>, RemoteError> {
        if data == b"[DONE]" {
            return Ok(Some(Event::Done));
        }
        let chunk: Chunk = serde_json::from_slice(data)
            .map_err(|why| malformed(&format!("an event is no completion: {why}")))?;
        if let Some(error) = &chunk.error {
            return Err(RemoteError::Failed(message(error)));
        }
        // The last event of a stream with usage has no choice.
        let Some(choice) = chunk.choices.into_iter().next() else { return Ok(None) };
        let finish = match choice.finish_reason.as_deref() {
            None => None,
            Some("stop") => Some(FinishReason::Stop),
            Some("length") => Some(FinishReason::Length),
            Some(other) => return Err(odd_finish(other)),
        };
        let has_text = choice.text.is_some_and(|text| !text.is_empty());
        match choice.token_ids {
            None if has_text => Err(RemoteError::NoTokenIds),
            ids => Ok(Some(Event::Tokens(ids.unwrap_or_default(), finish))),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn written(request: &EngineRequest, choice: u32) -> Value {
        serde_json::from_slice(&OpenAi.body("m", request, choice)).unwrap()
    }

    #[test]
    fn every_parameter_is_sent_under_its_name() {
        let params = SamplingParams {
            temperature: 0.5,
            top_k: 7,
            logit_bias: vec![(3, 1.5), (3, 1.0)],
            allowed_tokens: Some(vec![3, 4]),
            min_tokens: 2,
            ..SamplingParams::default()
        };
        let stop = StopRules {
            token_ids: vec![9],
            strings: vec!["end".into()],
            max_tokens: 5,
            ..StopRules::default()
        };
        let request = EngineRequest {
            cache_salt: Some("salt".into()),
            seed: 11,
            ..EngineRequest::new(vec![1, 2], params, stop)
        };
        let want = json!({
            "model": "m", "prompt": [1, 2], "stream": true, "return_token_ids": true, "max_tokens": 5, "seed": 11,
            "temperature": 0.5, "top_p": 1.0, "top_k": 7, "min_p": 0.0, "typical_p": 1.0, "presence_penalty": 0.0,
            "frequency_penalty": 0.0, "repetition_penalty": 1.0, "min_tokens": 2, "ignore_eos": false,
            "logit_bias": {"3": 2.5}, "allowed_token_ids": [3, 4], "stop_token_ids": [9], "cache_salt": "salt",
        });
        assert_eq!(written(&request, 0), want);
    }

    #[test]
    fn choices_differ_in_their_seeds() {
        let request = EngineRequest { seed: u64::MAX, ..EngineRequest::default() };
        assert_eq!(written(&request, 0)["seed"], -1);
        assert_ne!(written(&request, 1)["seed"], written(&request, 2)["seed"]);
        assert_eq!(written(&request, 0)["top_k"], -1, "0 is off here");
    }

    #[test]
    fn what_is_no_completion_is_an_error_that_says_so() {
        let error = |data: &str| Chunks.decode(data.as_bytes()).unwrap_err();
        assert!(matches!(error("{"), RemoteError::Malformed(_)));
        assert!(matches!(error("7"), RemoteError::Malformed(_)));
        let ids = r#"{"choices":[{"token_ids":[-1]}]}"#;
        assert!(matches!(error(ids), RemoteError::Malformed(_)));
        assert_eq!(error(r#"{"choices":[{"text":"a"}]}"#), RemoteError::NoTokenIds);
        let odd = r#"{"choices":[{"text":"","finish_reason":"abort"}]}"#;
        assert_eq!(error(odd), RemoteError::Failed("its finish reason is `abort`".into()));
        let failed = error(r#"{"error":{"message":"no memory","code":7}}"#);
        assert_eq!(failed, RemoteError::Failed("no memory".into()));
    }
}
