//! The answer of `strata generate` as `--json` prints it.

use std::time::Duration;

use l4_sampler::generate::{Choice, Generation};
use l4_sampler::{LogprobsRequest, TokenLogprobs};
use l5_scheduler::{FinishReason, Piece};
use serde::Serialize;

use super::kv::KvReport;

/// The whole object. The first choice stands at top level too, where it was before there could be several.
#[derive(Serialize)]
pub struct Answer<'a> {
    prompt_tokens: &'a [u32],
    /// What all random numbers followed from, given or drawn.
    seed: u64,
    #[serde(flatten)]
    first: Option<ChoiceReport<'a>>,
    choices: Vec<ChoiceReport<'a>>,
    usage: Usage,
    timings: Timings,
    kv: KvReport,
}

/// One answer.
#[derive(Clone, Serialize)]
struct ChoiceReport<'a> {
    /// Without special tokens; empty where there is no tokenizer.
    text: &'a str,
    /// The new tokens; the last may be the stop token.
    tokens: &'a [u32],
    finish_reason: &'static str,
    /// What went wrong, where something did.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'a str>,
    /// One entry for each token; `null` when not asked for.
    logprobs: Option<Vec<LogprobReport<'a>>>,
}

/// What an engine gave for a prompt.
pub struct Served<'a> {
    /// As it was given with the prompt.
    pub id: &'a serde_json::Value,
    /// The prompt, as token ids.
    pub prompt: &'a [u32],
    /// What all random numbers followed from.
    pub seed: u64,
    /// The answers, the best first.
    pub choices: &'a [ServedChoice],
    /// Whether their log probabilities are told.
    pub logprobs: bool,
    /// Reading the model.
    pub load: Duration,
    /// From asking to the first token, the time in the queue included.
    pub prefill: Duration,
    /// From there to the last token.
    pub decode: Duration,
    /// Where keys and values were.
    pub kv: KvReport,
}

/// One of its answers.
pub struct ServedChoice {
    /// Its tokens, text and log probabilities.
    pub piece: Piece,
    /// How it ended.
    pub finish: FinishReason,
    /// What went wrong, where something did.
    pub error: Option<String>,
}

/// A line of `strata generate --prompts`: the object of a single prompt, and whose it is.
#[derive(Serialize)]
pub struct AnswerLine<'a> {
    id: &'a serde_json::Value,
    #[serde(flatten)]
    answer: Answer<'a>,
}

impl<'a> AnswerLine<'a> {
    /// What to print of it.
    pub fn new(served: Served<'a>) -> Self {
        let Served { id, prompt, seed, logprobs, load, prefill, decode, kv, .. } = served;
        let report = |choice| ChoiceReport::served(choice, logprobs);
        let choices: Vec<_> = served.choices.iter().map(report).collect();
        let completion = served.choices.iter().map(|choice| choice.piece.tokens.len()).sum();
        let answer = Answer {
            prompt_tokens: prompt,
            seed,
            first: choices.first().cloned(),
            choices,
            usage: Usage::new(prompt.len(), completion),
            timings: Timings { load_ms: ms(load), prefill_ms: ms(prefill), decode_ms: ms(decode) },
            kv,
        };
        Self { id, answer }
    }
}

/// What the model thought of one token.
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
    /// Of all choices.
    completion_tokens: usize,
    total_tokens: usize,
}

/// Milliseconds.
#[derive(Serialize)]
struct Timings {
    load_ms: f64,
    prefill_ms: f64,
    decode_ms: f64,
}

impl<'a> Answer<'a> {
    /// What to print of a generation.
    pub fn new(
        prompt: &'a [u32],
        seed: u64,
        generation: &'a Generation,
        logprobs: Option<LogprobsRequest>,
        load: Duration,
        kv: KvReport,
    ) -> Self {
        let report = |choice| ChoiceReport::new(choice, logprobs.is_some());
        let choices: Vec<_> = generation.choices.iter().map(report).collect();
        Self {
            prompt_tokens: prompt,
            seed,
            first: choices.first().cloned(),
            choices,
            usage: Usage::new(prompt.len(), tokens(generation)),
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
    fn new(prompt_tokens: usize, completion_tokens: usize) -> Self {
        let total_tokens = prompt_tokens + completion_tokens;
        Self { prompt_tokens, completion_tokens, total_tokens }
    }
}

impl<'a> ChoiceReport<'a> {
    fn served(choice: &'a ServedChoice, logprobs: bool) -> Self {
        let ServedChoice { piece, finish, error } = choice;
        Self {
            text: &piece.text,
            tokens: &piece.tokens,
            finish_reason: finish.as_str(),
            error: error.as_deref(),
            logprobs: logprobs.then(|| piece.logprobs.iter().map(LogprobReport::new).collect()),
        }
    }

    fn new(choice: &'a Choice, logprobs: bool) -> Self {
        Self {
            text: &choice.text,
            tokens: &choice.tokens,
            finish_reason: choice.reason.as_str(),
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

/// Tokens of all answers.
pub fn tokens(generation: &Generation) -> usize {
    generation.choices.iter().map(|choice| choice.tokens.len()).sum()
}

/// Milliseconds, to the microsecond.
fn ms(d: Duration) -> f64 {
    d.as_micros() as f64 / 1e3
}

/// How fast it was. The first token of each answer comes out of the prefill; the others are decode steps.
pub fn summary(prompt: usize, generation: &Generation) -> String {
    let rate = |tokens: usize, time: Duration| tokens as f64 / time.as_secs_f64().max(1e-9);
    let new = tokens(generation);
    let mut reasons: Vec<_> = generation.choices.iter().map(|c| c.reason.as_str()).collect();
    reasons.dedup();
    format!(
        "{prompt} prompt tokens in {:.0} ms ({:.0}/s), {new} new ones in {:.0} ms ({:.1}/s), ended by {}",
        ms(generation.prefill),
        rate(prompt, generation.prefill),
        ms(generation.decode),
        rate(new.saturating_sub(generation.choices.len()), generation.decode),
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
