//! llama-server of llama.cpp. Its OpenAI API returns text only; its own `POST /completion` takes and returns token ids.
//!
//! Its defaults are not neutral (`top_k` 40, `min_p` 0.05, and whatever it was started with), and its filters come before
//! the temperature. So every parameter is sent, and `samplers` lists the stages in this server's order.

use std::collections::BTreeMap;
use std::sync::Arc;

use l2_model::tokenizer::Tokenizer;
use l4_sampler::SamplingParams;
use l4_sampler::stop::StopRules;
use l5_scheduler::{EngineRequest, FinishReason};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::error::RemoteError;
use super::lost_tokens::CutTokens;
use super::wire::{Decoder, Event, Wire, malformed, message, odd_finish, seed_of};

/// Stages of its sampler, in the order of [`SamplingParams`]. Stages that are not listed, such as DRY and XTC, are off.
const SAMPLERS: [&str; 6] = ["penalties", "temperature", "top_k", "top_p", "min_p", "typ_p"];

/// Number of seeds: 2^32 - 1 stands for a random one.
const SEEDS: u64 = u32::MAX as u64;

/// `POST /completion`.
pub(super) struct LlamaServer(Option<Arc<Vocabulary>>);

/// What finds the tokens that it leaves out.
struct Vocabulary {
    tokenizer: Tokenizer,
    cut: CutTokens,
}

impl LlamaServer {
    /// A server of a model with this tokenizer.
    pub fn new(tokenizer: Option<Tokenizer>) -> Self {
        Self(tokenizer.map(|tokenizer| {
            let cut = CutTokens::of(&tokenizer);
            Arc::new(Vocabulary { tokenizer, cut })
        }))
    }
}

/// A completion request.
#[derive(Debug, Serialize)]
struct Body<'a> {
    model: &'a str,
    prompt: &'a [u32],
    stream: bool,
    return_tokens: bool,
    n_predict: usize,
    seed: u64,
    samplers: [&'static str; 6],
    temperature: f32,
    /// 0: all tokens.
    top_k: usize,
    top_p: f32,
    min_p: f32,
    typical_p: f32,
    repeat_penalty: f32,
    /// Number of last tokens of prompt and output that the penalty sees.
    repeat_last_n: usize,
    presence_penalty: f32,
    frequency_penalty: f32,
    /// Replaces the biases that the server was started with.
    logit_bias: Vec<(u32, f32)>,
    ignore_eos: bool,
    mirostat: u32,
    dynatemp_range: f32,
    min_keep: usize,
    cache_prompt: bool,
}

impl Wire for LlamaServer {
    fn completions(&self, _: &str, root: &str) -> String {
        format!("{root}/completion")
    }

    fn check(&self, request: &EngineRequest) -> Result<(), &'static str> {
        let (params, stop) = (&request.params, &request.stop);
        let refused = [
            // It counts the tokens of the prompt as well.
            (params.presence_penalty != 0.0, "presence penalties"),
            (params.frequency_penalty != 0.0, "frequency penalties"),
            (params.min_tokens > 0, "minimum numbers of tokens"),
            (params.allowed_tokens.is_some(), "lists of allowed tokens"),
            // It bans end tokens instead of going on behind them.
            (stop.ignore_eos, "outputs that go on behind an end token"),
        ];
        refused.into_iter().find(|(has, _)| *has).map_or(Ok(()), |(_, what)| Err(what))
    }

    fn body(&self, model: &str, request: &EngineRequest, choice: u32) -> Vec<u8> {
        let EngineRequest { prompt, params, stop, seed, cache_salt, .. } = request;
        let StopRules { max_tokens, .. } = stop;
        let mut logit_bias = BTreeMap::new();
        for (id, bias) in &params.logit_bias {
            *logit_bias.entry(*id).or_insert(0.0) += bias;
        }
        // No filter has an effect on the most likely token.
        let greedy = SamplingParams::greedy();
        let filters = if params.is_greedy() { &greedy } else { params.as_ref() };
        let most = i32::MAX as usize;
        let body = Body {
            model,
            prompt,
            stream: true,
            return_tokens: true,
            n_predict: (*max_tokens).min(most),
            seed: seed_of(*seed, choice) % SEEDS,
            samplers: SAMPLERS,
            temperature: params.temperature,
            top_k: filters.top_k.min(most),
            top_p: filters.top_p,
            min_p: filters.min_p,
            typical_p: filters.typical_p,
            repeat_penalty: params.repetition_penalty,
            repeat_last_n: prompt.len().saturating_add(*max_tokens).min(most),
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            logit_bias: logit_bias.into_iter().collect(),
            ignore_eos: false,
            mirostat: 0,
            dynatemp_range: 0.0,
            min_keep: 0,
            // It knows no salts: a request with one takes nothing from the prompts before it.
            cache_prompt: cache_salt.as_ref().is_none_or(String::is_empty),
        };
        // Numbers and strings: nothing in it can fail to be written.
        serde_json::to_vec(&body).unwrap_or_default()
    }

    fn decoder(&self) -> Box<dyn Decoder> {
        Box::new(Chunks { vocabulary: self.0.clone(), count: 0 })
    }
}

#[derive(Deserialize)]
struct Chunk {
    #[serde(default)]
    content: String,
    #[serde(default)]
    tokens: Option<Vec<u32>>,
    /// Number of output tokens so far.
    #[serde(default)]
    tokens_predicted: Option<usize>,
    /// Whether it is the last one.
    #[serde(default)]
    stop: bool,
    #[serde(default)]
    stop_type: Option<String>,
    #[serde(default)]
    error: Option<Value>,
}

/// Decoder of the chunks of a completion.
struct Chunks {
    vocabulary: Option<Arc<Vocabulary>>,
    /// Number of tokens so far.
    count: usize,
}

impl Decoder for Chunks {
    fn decode(&mut self, data: &[u8]) -> Result<Option<Event>, RemoteError> {
        let chunk: Chunk = serde_json::from_slice(data)
            .map_err(|why| malformed(&format!("an event is no completion: {why}")))?;
        if let Some(error) = &chunk.error {
            return Err(RemoteError::Failed(message(error)));
        }
        let finish = match (chunk.stop, chunk.stop_type.as_deref()) {
            (false, _) => None,
            // A word is a stop string that the server was started with.
            (true, Some("eos" | "word")) => Some(FinishReason::Stop),
            (true, Some("limit")) => Some(FinishReason::Length),
            (true, other) => return Err(odd_finish(other.unwrap_or("none"))),
        };
        let mut tokens = chunk.tokens.unwrap_or_default();
        if tokens.is_empty() && !chunk.content.is_empty() {
            return Err(RemoteError::NoTokenIds);
        }
        if let [token] = tokens[..] {
            let lost = chunk.tokens_predicted.unwrap_or(0).saturating_sub(self.count + 1);
            let mut all = self.lost(lost, &chunk.content, token)?;
            all.push(token);
            tokens = all;
        }
        self.count += tokens.len();
        Ok(Some(Event::Tokens(tokens, finish)))
    }
}

impl Chunks {
    /// The `count` tokens that the server has sampled before `token` and not sent: see [`CutTokens`].
    fn lost(&self, count: usize, content: &str, token: u32) -> Result<Vec<u32>, RemoteError> {
        let Some(vocabulary) = self.vocabulary.as_ref().filter(|_| count > 0) else {
            return Ok(Vec::new());
        };
        // That a token does not exist is found where tokens are counted.
        let Ok(bytes) = vocabulary.tokenizer.token_bytes(token) else { return Ok(Vec::new()) };
        match content.as_bytes().strip_suffix(bytes) {
            // Its text is that of the token: nothing is lost, whatever its count says.
            None | Some([]) => Ok(Vec::new()),
            Some(text) => vocabulary.cut.find(text, count).ok_or_else(|| {
                malformed("it left out the tokens of a character, which its text does not tell")
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn written(request: &EngineRequest, choice: u32) -> Value {
        serde_json::from_slice(&LlamaServer::new(None).body("m", request, choice)).unwrap()
    }

    fn request(params: SamplingParams) -> EngineRequest {
        let stop = StopRules { max_tokens: 5, ..StopRules::default() };
        EngineRequest { seed: 11, ..EngineRequest::new(vec![1, 2], params, stop) }
    }

    #[test]
    fn every_parameter_is_sent_so_that_no_default_of_the_server_holds() {
        let params = SamplingParams {
            temperature: 0.5,
            top_k: 7,
            repetition_penalty: 1.5,
            logit_bias: vec![(3, 1.5), (3, 1.0)],
            ..SamplingParams::default()
        };
        let want = json!({
            "model": "m", "prompt": [1, 2], "stream": true, "return_tokens": true, "n_predict": 5, "seed": 11,
            "samplers": ["penalties", "temperature", "top_k", "top_p", "min_p", "typ_p"],
            "temperature": 0.5, "top_k": 7, "top_p": 1.0, "min_p": 0.0, "typical_p": 1.0,
            "repeat_penalty": 1.5, "repeat_last_n": 7, "presence_penalty": 0.0, "frequency_penalty": 0.0,
            "logit_bias": [[3, 2.5]], "ignore_eos": false, "mirostat": 0, "dynatemp_range": 0.0, "min_keep": 0,
            "cache_prompt": true,
        });
        assert_eq!(written(&request(params), 0), want);
    }

    #[test]
    fn greedy_requests_have_no_filters_and_salted_ones_no_cache() {
        let greedy = SamplingParams { top_k: 3, typical_p: 0.5, ..SamplingParams::greedy() };
        let mut request = request(greedy);
        request.cache_salt = Some("salt".into());
        let body = written(&request, 0);
        assert_eq!((&body["top_k"], &body["typical_p"]), (&json!(0), &json!(1.0)));
        assert_eq!(body["cache_prompt"], false);
    }

    #[test]
    fn seeds_have_32_bits_and_none_of_them_is_the_random_one() {
        let seeded = |seed, choice| {
            let request = EngineRequest { seed, ..EngineRequest::default() };
            written(&request, choice)["seed"].as_u64().unwrap()
        };
        assert_ne!(seeded(u64::from(u32::MAX), 0), u64::from(u32::MAX));
        assert!((0..100).all(|choice| seeded(u64::MAX, choice) < u64::from(u32::MAX)));
        assert_ne!(seeded(7, 1), seeded(7, 2));
    }

    #[test]
    fn what_it_cannot_do_is_refused() {
        let refused = |change: &dyn Fn(&mut SamplingParams)| {
            let mut params = SamplingParams::default();
            change(&mut params);
            LlamaServer::new(None).check(&request(params)).err()
        };
        assert_eq!(refused(&|params| params.repetition_penalty = 1.2), None);
        assert_eq!(refused(&|params| params.presence_penalty = 0.5), Some("presence penalties"));
        assert_eq!(refused(&|params| params.frequency_penalty = 0.5), Some("frequency penalties"));
        assert_eq!(refused(&|params| params.min_tokens = 1), Some("minimum numbers of tokens"));
        let lists = Some("lists of allowed tokens");
        assert_eq!(refused(&|params| params.allowed_tokens = Some(vec![1])), lists);
        let mut endless = request(SamplingParams::default());
        endless.stop.ignore_eos = true;
        assert!(LlamaServer::new(None).check(&endless).is_err());
    }

    fn decode(data: &Value) -> Result<Option<Event>, RemoteError> {
        let mut chunks = LlamaServer::new(None).decoder();
        chunks.decode(data.to_string().as_bytes())
    }

    #[test]
    fn events_have_tokens_and_the_last_one_says_how_the_output_ended() {
        let tokens = json!({"content": "a", "tokens": [5], "stop": false, "tokens_predicted": 1});
        assert_eq!(decode(&tokens), Ok(Some(Event::Tokens(vec![5], None))));
        for (stop, finish) in [
            ("eos", Some(FinishReason::Stop)),
            ("word", Some(FinishReason::Stop)),
            ("limit", Some(FinishReason::Length)),
            ("none", None),
        ] {
            let end = json!({"content": "", "tokens": [], "stop": true, "stop_type": stop});
            match finish {
                Some(finish) => {
                    assert_eq!(decode(&end), Ok(Some(Event::Tokens(vec![], Some(finish)))));
                }
                None => assert!(matches!(decode(&end), Err(RemoteError::Failed(_)))),
            }
        }
    }

    #[test]
    fn text_without_tokens_and_errors_are_errors() {
        assert_eq!(decode(&json!({"content": "a"})), Err(RemoteError::NoTokenIds));
        let error = json!({"error": {"code": 500, "message": "no memory", "type": "server_error"}});
        assert_eq!(decode(&error), Err(RemoteError::Failed("no memory".into())));
        assert!(matches!(decode(&json!({"tokens": [-1]})), Err(RemoteError::Malformed(_))));
    }
}
