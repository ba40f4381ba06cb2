//! Answers with a shape.

use l4_sampler::generate::{Choice, Request};
use l4_sampler::guide::GuideSpec;
use l4_sampler::stop::StopReason;
use l4_sampler::{LogprobsOf, LogprobsRequest, SamplingParams};
use serde_json::{Value, json};

use crate::support::{KINDS, Kind, PROMPT, Tiny, answers, generate, tiny};

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

/// Three answers that follow the schema, and how many of their tokens were forced.
fn three(tiny: &Tiny, kind: Kind, params: &SamplingParams) -> (Vec<Choice>, usize) {
    let guide = tiny.guides().guide(&GuideSpec::JsonSchema(schema())).unwrap();
    let stop = l4_sampler::stop::StopRules { ignore_eos: false, ..tiny.long(200) };
    let plain = Request::new(&PROMPT, params, &stop);
    let request = Request { n: 3, seed: 21, guide: Some(&guide), ..plain };
    let generation = generate(&mut tiny.generator(kind, 3), &request);
    (generation.choices, generation.work.forced_tokens)
}

#[test]
fn every_answer_follows_the_schema() {
    for name in MODELS {
        let tiny = tiny(name);
        let (got, forced) = three(&tiny, Kind::Paged(16), &SamplingParams::default());
        assert!(forced > 3 * 5, "{forced} tokens of {name} were forced");
        let texts: Vec<&str> = got.iter().map(|c| c.text.as_str()).collect();
        assert!(texts.iter().any(|text| *text != texts[0]), "answers of {name}: {texts:?}");
        for choice in &got {
            let value: Value = serde_json::from_str(&choice.text).unwrap();
            assert!(value["temperature"].as_u64().unwrap() < 100, "{value}");
            assert!(["sunny", "sultry", "rainy"].contains(&value["weather"].as_str().unwrap()));
            assert!(
                matches!(choice.reason, StopReason::Guide | StopReason::Eos(_)),
                "{:?} of {name}",
                choice.reason
            );
        }
    }
}

#[test]
fn tokens_that_are_forced_are_those_that_would_be_sampled_with_the_same_log_probabilities() {
    for name in MODELS {
        let tiny = tiny(name);
        for of in [LogprobsOf::Raw, LogprobsOf::Processed] {
            let forcing = params(of);
            let (fast, forced) = three(&tiny, Kind::Paged(16), &forcing);
            assert!(forced > 0, "{name}");
            // A ban of a token that no answer could have: nothing may be forced then.
            let unused = tiny.vocab() as u32 - 1;
            let sampling = SamplingParams { banned_tokens: vec![unused], ..forcing };
            let (slow, forced) = three(&tiny, Kind::Paged(16), &sampling);
            assert_eq!(forced, 0, "{name}");
            assert_eq!(fast, slow, "{name}, {of:?}: with forced tokens, and with all sampled");
            for choice in &fast {
                let ids: Vec<u32> = choice.logprobs.iter().map(|l| l.id).collect();
                assert_eq!(ids, choice.tokens, "a log probability for every token");
            }
        }
    }
}

#[test]
fn guided_answers_are_the_same_over_every_state_and_alone() {
    let tiny = tiny("tiny-llama");
    let params = params(LogprobsOf::Raw);
    let (expected, _) = three(&tiny, Kind::Contiguous, &params);
    for kind in KINDS {
        assert_eq!(three(&tiny, kind, &params).0, expected, "over {kind:?}");
    }
    let guide = tiny.guides().guide(&GuideSpec::JsonSchema(schema())).unwrap();
    let stop = l4_sampler::stop::StopRules { ignore_eos: false, ..tiny.long(200) };
    for (i, expected) in expected.iter().enumerate() {
        let plain = Request::new(&PROMPT, &params, &stop);
        let request = Request { seed: 21, guide: Some(&guide), first_sample: i, ..plain };
        let got = answers(&mut tiny.generator(Kind::Paged(4), 1), &request).remove(0);
        assert_eq!(&got, expected, "sample {i} alone");
    }
}

#[test]
fn a_guided_answer_that_is_too_long_is_a_beginning_of_one() {
    let tiny = tiny("tiny-llama");
    let params = params(LogprobsOf::Raw);
    let guide = tiny.guides().guide(&GuideSpec::JsonSchema(schema())).unwrap();
    let whole = three(&tiny, Kind::Paged(16), &params).0.remove(0);
    for max_tokens in 1..whole.tokens.len() {
        // The cut falls into forced tokens too.
        let stop = tiny.long(max_tokens);
        let plain = Request::new(&PROMPT, &params, &stop);
        let request = Request { seed: 21, guide: Some(&guide), ..plain };
        let got = answers(&mut tiny.generator(Kind::Paged(16), 1), &request).remove(0);
        assert_eq!(got.tokens, whole.tokens[..max_tokens]);
        assert_eq!(got.logprobs, whole.logprobs[..max_tokens], "of {max_tokens} tokens");
        assert_eq!(got.reason, StopReason::Length, "of {max_tokens} tokens");
    }
}

#[test]
fn a_guide_that_is_complete_with_the_last_token_that_fits_is_why_the_answer_ends() {
    let tiny = tiny("tiny-llama");
    let guide = tiny.guides().guide(&GuideSpec::Choice(vec!["yes".into()])).unwrap();
    let params = SamplingParams::default();
    let mut lens = vec![];
    for max_tokens in [200, 0] {
        let max_tokens = lens.first().copied().unwrap_or(max_tokens);
        let stop = tiny.long(max_tokens);
        let request = Request { guide: Some(&guide), ..Request::new(&PROMPT, &params, &stop) };
        let got = answers(&mut tiny.generator(Kind::Paged(16), 1), &request).remove(0);
        assert_eq!((got.text.as_str(), got.reason), ("yes", StopReason::Guide));
        lens.push(got.tokens.len());
    }
}

#[test]
fn greedy_and_guided_go_together() {
    let tiny = tiny("tiny-qwen2");
    let params = SamplingParams::greedy();
    let stop = tiny.long(60);
    let spec = GuideSpec::Regex("[a-z]{3}-[0-9]{4}".into());
    let guide = tiny.guides().guide(&spec).unwrap();
    let request = Request { n: 2, guide: Some(&guide), ..Request::new(&PROMPT, &params, &stop) };
    let got = answers(&mut tiny.generator(Kind::Contiguous, 2), &request);
    assert_eq!(got[0].tokens, got[1].tokens);
    let text = got[0].text.as_bytes();
    assert_eq!((text.len(), text[3]), (8, b'-'), "{}", got[0].text);
}
