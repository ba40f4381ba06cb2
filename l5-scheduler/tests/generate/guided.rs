//! Answers with a shape.

use l4_sampler::guide::GuideSpec;
use l4_sampler::stop::{StopReason, StopRules};
use l4_sampler::{LogprobsOf, LogprobsRequest, SamplingParams};
use serde_json::{Value, json};

use crate::support::{BLOCKS, PROMPT, Request, answers, generate, reason, same};
use crate::tiny::{Tiny, tiny};

const MODELS: [&str; 3] = ["tiny-llama", "tiny-mistral", "tiny-qwen2"];

/// A schema with much that is forced, and a little that is not.
fn schema() -> Value {
    json!({
        "type": "object",
        "properties": {
            "temperature": { "type": "integer", "minimum": 0, "maximum": 99 },
            "weather": { "enum": ["sunny", "sultry", "rainy"] },
        },
        "required": ["temperature", "weather"],
        "additionalProperties": false,
    })
}

fn params(of: LogprobsOf) -> SamplingParams {
    let logprobs = Some(LogprobsRequest { top: 2, of });
    SamplingParams { logprobs, ..SamplingParams::default() }
}

/// A request for three choices that follow the schema.
fn three(tiny: &Tiny, params: &SamplingParams) -> Request {
    let stop = StopRules { ignore_eos: false, ..tiny.long(200) };
    let guide = Some(GuideSpec::JsonSchema(schema()));
    Request { n: 3, seed: 21, guide, ..Request::new(&PROMPT, params, &stop) }
}

#[test]
fn every_answer_follows_the_schema() {
    for name in MODELS {
        let tiny = tiny(name);
        let request = three(&tiny, &SamplingParams::default());
        let generation = generate(&mut tiny.generator(16, 3), &request);
        let got = generation.choices;
        let longest = got.iter().map(|c| c.tokens.len()).max().unwrap();
        let steps = generation.work.steps;
        assert!(
            steps + 5 < longest,
            "{steps} steps for {longest} tokens of {name}: some are forced"
        );
        let texts: Vec<&str> = got.iter().map(|c| c.text.as_str()).collect();
        assert!(texts.iter().any(|text| *text != texts[0]), "answers of {name}: {texts:?}");
        for choice in &got {
            let value: Value = serde_json::from_str(&choice.text).unwrap();
            assert!(value["temperature"].as_u64().unwrap() < 100, "{value}");
            assert!(["sunny", "sultry", "rainy"].contains(&value["weather"].as_str().unwrap()));
            let reason = reason(choice);
            assert!(
                matches!(reason, StopReason::Guide | StopReason::Eos(_)),
                "{reason:?} of {name}"
            );
        }
    }
}

/// The naive loop samples every token: what the runner forces must be what the mask leaves.
#[test]
fn tokens_that_are_forced_are_those_that_would_be_sampled_with_the_same_log_probabilities() {
    for name in MODELS {
        let tiny = tiny(name);
        let silent = three(&tiny, &SamplingParams::default());
        let got = answers(&mut tiny.generator(16, 3), &silent);
        same(&format!("{name}, some tokens forced"), &got, &tiny.alone(&silent));
        for of in [LogprobsOf::Raw, LogprobsOf::Processed] {
            let request = three(&tiny, &params(of));
            let rated = answers(&mut tiny.generator(16, 3), &request);
            same(&format!("{name}, {of:?}"), &rated, &tiny.alone(&request));
            for (rated, silent) in rated.iter().zip(&got) {
                assert_eq!(rated.tokens, silent.tokens, "{name}, {of:?}: forced, and all sampled");
                let ids: Vec<u32> = rated.logprobs.iter().map(|l| l.id).collect();
                assert_eq!(ids, rated.tokens, "a log probability for every token");
            }
        }
    }
}

#[test]
fn guided_answers_are_the_same_over_any_blocks_and_alone() {
    let tiny = tiny("tiny-llama");
    let request = three(&tiny, &params(LogprobsOf::Raw));
    let expected = tiny.alone(&request);
    for block in BLOCKS {
        let got = answers(&mut tiny.generator(block, 3), &request);
        same(&format!("over blocks of {block}"), &got, &expected);
    }
    for i in 0..3 {
        let request = Request { n: 1, first_sample: i as u32, ..request.clone() };
        let got = answers(&mut tiny.generator(4, 1), &request);
        same("one by itself", &got, &expected[i..=i]);
    }
}

#[test]
fn a_guided_answer_that_is_too_long_is_a_beginning_of_one() {
    let tiny = tiny("tiny-llama");
    let params = params(LogprobsOf::Raw);
    let request = three(&tiny, &params);
    let whole = answers(&mut tiny.generator(16, 3), &request).remove(0);
    for max_tokens in 1..whole.tokens.len() {
        // The cut falls into forced tokens too.
        let stop = tiny.long(max_tokens);
        let request = Request { n: 1, stop, ..request.clone() };
        let got = answers(&mut tiny.generator(16, 1), &request).remove(0);
        assert_eq!(got.tokens, whole.tokens[..max_tokens]);
        assert_eq!(got.logprobs, whole.logprobs[..max_tokens], "of {max_tokens} tokens");
        assert_eq!(reason(&got), StopReason::Length, "of {max_tokens} tokens");
    }
}

#[test]
fn a_guide_that_is_complete_with_the_last_token_that_fits_is_why_the_answer_ends() {
    let tiny = tiny("tiny-llama");
    let spec = GuideSpec::Choice(vec!["yes".into()]);
    let params = SamplingParams::default();
    let mut lens = vec![];
    for max_tokens in [200, 0] {
        let max_tokens = lens.first().copied().unwrap_or(max_tokens);
        let stop = tiny.long(max_tokens);
        let request =
            Request { guide: Some(spec.clone()), ..Request::new(&PROMPT, &params, &stop) };
        let got = answers(&mut tiny.generator(16, 1), &request).remove(0);
        assert_eq!((got.text.as_str(), reason(&got)), ("yes", StopReason::Guide));
        lens.push(got.tokens.len());
    }
}

#[test]
fn greedy_and_guided_go_together() {
    let tiny = tiny("tiny-qwen2");
    let params = SamplingParams::greedy();
    let stop = tiny.long(60);
    let spec = GuideSpec::Regex("[a-z]{3}-[0-9]{4}".into());
    let request =
        Request { n: 2, guide: Some(spec.clone()), ..Request::new(&PROMPT, &params, &stop) };
    let got = answers(&mut tiny.generator(512, 2), &request);
    assert_eq!(got[0].tokens, got[1].tokens);
    let text = got[0].text.as_bytes();
    assert_eq!((text.len(), text[3]), (8, b'-'), "{}", got[0].text);
}
