//! The body of a request to a remote server.

use std::collections::BTreeMap;

use l4_sampler::SamplingParams;
use l4_sampler::stop::StopRules;
use l5_scheduler::EngineRequest;
use serde::Serialize;

/// Odd constant that spreads the seeds of a request's choices (the golden ratio of 64 bits, as in SplitMix64).
const SEED_STEP: u64 = 0x9e37_79b9_7f4a_7c15;

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

/// Writes a request for choice `choice` of `request` from the model that the server calls `model`. Stop strings are
/// left out: they are found here, in this server's text.
pub(super) fn write(model: &str, request: &EngineRequest, choice: u32) -> Vec<u8> {
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
        seed: seed_of(*seed, choice),
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

/// Seed of a choice. The first one has the seed of the request, so that it is what the server itself would return.
fn seed_of(seed: u64, choice: u32) -> i64 {
    seed.wrapping_add(SEED_STEP.wrapping_mul(u64::from(choice))).cast_signed()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn written(request: &EngineRequest, choice: u32) -> Value {
        serde_json::from_slice(&write("m", request, choice)).unwrap()
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
}
