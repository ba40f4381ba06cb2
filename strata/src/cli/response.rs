//! Responses of `strata generate` as `--json` prints them.

use std::time::Duration;

use l4_sampler::{LogprobsRequest, TokenLogprobs};
use l5_scheduler::generate::{Choice, Generation};
use l5_scheduler::{DraftCounts, FinishReason, OutputChunk};
use serde::Serialize;

use super::kv::KvReport;

/// Response to one prompt. The fields of its first choice are at top level as well.
#[derive(Serialize)]
pub struct Response<'a> {
    prompt_tokens: &'a [u32],
    /// Seed of all random numbers, given or random.
    seed: u64,
    #[serde(flatten)]
    first: Option<ChoiceReport<'a>>,
    choices: Vec<ChoiceReport<'a>>,
    usage: Usage,
    timings: Timings,
    kv: KvReport,
}

/// One choice.
#[derive(Clone, Serialize)]
struct ChoiceReport<'a> {
    /// Text without special tokens; empty without a tokenizer.
    text: &'a str,
    /// Output tokens; the last one may be the stop token.
    tokens: &'a [u32],
    finish_reason: &'static str,
    /// Error that ended the choice, if one did.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'a str>,
    /// One entry for each token; `null` without `--logprobs`.
    logprobs: Option<Vec<LogprobReport<'a>>>,
}

/// Output of an engine for one prompt.
pub struct EngineResponse<'a> {
    /// Id of the prompt, as its line gives it.
    pub id: &'a serde_json::Value,
    /// The prompt, as token ids.
    pub prompt: &'a [u32],
    /// Seed of all random numbers.
    pub seed: u64,
    /// Choices, the best first.
    pub choices: &'a [EngineChoice],
    /// Output tokens of all choices, those that `best_of` dropped included.
    pub completion_tokens: usize,
    /// Drafts of the same choices; `None`: the engine does not speculate.
    pub drafts: Option<DraftCounts>,
    /// Whether log probabilities are printed.
    pub logprobs: bool,
    /// Time to load the model.
    pub load: Duration,
    /// Time to first token, including the time in the queue.
    pub prefill: Duration,
    /// Time from the first token to the last.
    pub decode: Duration,
    /// KV cache.
    pub kv: KvReport,
}

/// One choice of an [`EngineResponse`].
pub struct EngineChoice {
    /// Tokens, text and log probabilities.
    pub output: OutputChunk,
    /// Reason for the end.
    pub finish: FinishReason,
    /// Error that ended the choice, if one did.
    pub error: Option<String>,
}

/// A line of `strata generate --prompts`: the id of the prompt, and its response.
#[derive(Serialize)]
pub struct ResponseLine<'a> {
    id: &'a serde_json::Value,
    #[serde(flatten)]
    response: Response<'a>,
}

impl<'a> ResponseLine<'a> {
    /// Formats the output for one prompt.
    pub fn new(served: EngineResponse<'a>) -> Self {
        let EngineResponse { id, prompt, seed, completion_tokens, drafts, .. } = served;
        let EngineResponse { logprobs, load, prefill, decode, kv, .. } = served;
        let report = |choice| ChoiceReport::of_engine(choice, logprobs);
        let choices: Vec<_> = served.choices.iter().map(report).collect();
        let response = Response {
            prompt_tokens: prompt,
            seed,
            first: choices.first().cloned(),
            choices,
            usage: Usage::new(prompt.len(), completion_tokens, drafts),
            timings: Timings { load_ms: ms(load), prefill_ms: ms(prefill), decode_ms: ms(decode) },
            kv,
        };
        Self { id, response }
    }
}

/// Log probabilities at one position.
#[derive(Clone, Serialize)]
struct LogprobReport<'a> {
    id: u32,
    #[serde(serialize_with = "logprob")]
    logprob: f32,
    top: Vec<Top<'a>>,
}

/// `[id, logprob]`
#[derive(Clone, Serialize)]
struct Top<'a>(&'a u32, #[serde(serialize_with = "logprob")] f32);

/// Counts of tokens, named as in OpenAI's API.
#[derive(Serialize)]
struct Usage {
    prompt_tokens: usize,
    /// Output tokens of all choices, those that `best_of` dropped included.
    completion_tokens: usize,
    total_tokens: usize,
    /// Absent unless the engine speculates.
    #[serde(skip_serializing_if = "Option::is_none")]
    completion_tokens_details: Option<CompletionTokensDetails>,
}

/// Drafts of the output, by the names that OpenAI's API has for tokens of a prediction.
#[derive(Serialize)]
struct CompletionTokensDetails {
    /// Drafts that became output tokens.
    accepted_prediction_tokens: usize,
    /// Drafts that did not. They are not among the output tokens.
    rejected_prediction_tokens: usize,
}

/// Milliseconds.
#[derive(Serialize)]
struct Timings {
    load_ms: f64,
    prefill_ms: f64,
    decode_ms: f64,
}

impl<'a> Response<'a> {
    /// Formats a generation, of an engine that speculates or does not.
    pub fn new(
        prompt: &'a [u32],
        seed: u64,
        generation: &'a Generation,
        speculates: bool,
        logprobs: Option<LogprobsRequest>,
        load: Duration,
        kv: KvReport,
    ) -> Self {
        let drafts = speculates.then_some(generation.drafts);
        let report = |choice| ChoiceReport::new(choice, logprobs.is_some());
        let choices: Vec<_> = generation.choices.iter().map(report).collect();
        Self {
            prompt_tokens: prompt,
            seed,
            first: choices.first().cloned(),
            choices,
            usage: Usage::new(prompt.len(), generation.output_tokens, drafts),
            timings: Timings {
                load_ms: ms(load),
                prefill_ms: ms(generation.prefill),
                decode_ms: ms(generation.decode),
            },
            kv,
        }
    }
}

impl Usage {
    fn new(prompt_tokens: usize, completion_tokens: usize, drafts: Option<DraftCounts>) -> Self {
        let total_tokens = prompt_tokens + completion_tokens;
        let details = |drafts: DraftCounts| CompletionTokensDetails {
            accepted_prediction_tokens: drafts.accepted,
            rejected_prediction_tokens: drafts.rejected(),
        };
        let completion_tokens_details = drafts.map(details);
        Self { prompt_tokens, completion_tokens, total_tokens, completion_tokens_details }
    }
}

impl<'a> ChoiceReport<'a> {
    fn of_engine(choice: &'a EngineChoice, logprobs: bool) -> Self {
        let EngineChoice { output, finish, error } = choice;
        Self {
            text: &output.text,
            tokens: &output.tokens,
            finish_reason: finish.as_str(),
            error: error.as_deref(),
            logprobs: logprobs.then(|| output.logprobs.iter().map(LogprobReport::new).collect()),
        }
    }

    fn new(choice: &'a Choice, logprobs: bool) -> Self {
        Self {
            text: &choice.text,
            tokens: &choice.tokens,
            finish_reason: choice.finish.as_str(),
            error: None,
            logprobs: logprobs.then(|| choice.logprobs.iter().map(LogprobReport::new).collect()),
        }
    }
}

impl<'a> LogprobReport<'a> {
    fn new(of: &'a TokenLogprobs) -> Self {
        let top = of.top.iter().map(|(id, logprob)| Top(id, *logprob)).collect();
        Self { id: of.id, logprob: of.logprob, top }
    }
}

/// JSON has no infinity. A logarithm of 0 becomes -9999, as in OpenAI's API.
fn logprob<S: serde::Serializer>(logprob: &f32, serializer: S) -> Result<S::Ok, S::Error> {
    // A sum with 0 has no negative zero.
    serializer.serialize_f32(logprob.max(-9999.0) + 0.0)
}

/// Milliseconds, to the microsecond.
fn ms(d: Duration) -> f64 {
    d.as_micros() as f64 / 1e3
}

/// Summary of a generation: tokens, times, speeds and finish reasons. The prefill samples the first token of each
/// choice; the others are of decode steps. Of an engine that speculates it has the drafts, and the mean number of
/// tokens that a step brought a choice.
pub fn summary(prompt: usize, generation: &Generation, speculates: bool) -> String {
    let rate = |tokens: usize, time: Duration| tokens as f64 / time.as_secs_f64().max(1e-9);
    let mut reasons: Vec<_> = generation.choices.iter().map(|c| c.finish.as_str()).collect();
    reasons.dedup();
    let DraftCounts { proposed, accepted } = generation.drafts;
    let drafts = match speculates {
        true => {
            let rows = generation.work.sampling_rows.max(1) as f64;
            let mean = generation.output_tokens as f64 / rows;
            format!("drafts {accepted} of {proposed} accepted, {mean:.2} tokens a step, ")
        }
        false => String::new(),
    };
    format!(
        "{prompt} prompt tokens in {:.0} ms ({:.0}/s), {} output tokens in {:.0} ms ({:.1}/s), {drafts}finish \
         reason: {}",
        ms(generation.prefill),
        rate(prompt, generation.prefill),
        generation.output_tokens,
        ms(generation.decode),
        rate(generation.work.output_computed, generation.decode),
        reasons.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_probabilities_are_numbers_that_json_has() {
        let of = TokenLogprobs {
            id: 3,
            logprob: -0.0,
            rank: 0,
            top: vec![(3, -0.5), (4, f32::NEG_INFINITY)],
        };
        let json = serde_json::to_string(&LogprobReport::new(&of)).unwrap();
        assert_eq!(json, r#"{"id":3,"logprob":0.0,"top":[[3,-0.5],[4,-9999.0]]}"#);
    }
}
