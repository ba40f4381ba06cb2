//! An invalid request is refused before anything runs.

use l4_sampler::SamplingParams;
use l4_sampler::stop::StopRules;

use crate::support::{MAX_LEN, PROMPT, Request, empty};
use crate::tiny::tiny;

#[test]
fn invalid_requests() {
    let tiny = tiny("tiny-llama");
    let mut generator = tiny.generator(16, 2);
    let (params, stop) = (SamplingParams::default(), tiny.long(5));
    let good = Request::new(&PROMPT, &params, &stop);
    let mut refused = |request: &Request, words: &[&str]| {
        let error = generator
            .run(&request.build(), |_, _| panic!("something ran"))
            .unwrap_err()
            .to_string();
        for word in words {
            assert!(error.contains(word), "`{word}` in {error}");
        }
    };
    refused(&Request { prompt: vec![], ..good.clone() }, &["the prompt is empty"]);
    let long = [1; MAX_LEN];
    refused(
        &Request { prompt: long.to_vec(), ..good.clone() },
        &["400 tokens", "maximum context length of 400 tokens"],
    );
    refused(&Request { n: 0, ..good.clone() }, &["n must be at least 1"]);
    refused(&Request { n: 2, best_of: 1, ..good.clone() }, &["best_of", "at least n", "got 1"]);
    let hot = SamplingParams { temperature: -1.0, ..params.clone() };
    refused(&Request { params: hot, ..good.clone() }, &["temperature"]);
    let banned = SamplingParams { banned_tokens: vec![1, 389], ..params.clone() };
    refused(&Request { params: banned, ..good.clone() }, &["banned_tokens", "389"]);
    let empty = StopRules { strings: vec!["x".into(), String::new()], ..stop.clone() };
    refused(&Request { stop: empty, ..good.clone() }, &["stop string is empty"]);
    let unknown = StopRules { token_ids: vec![4000], ..stop.clone() };
    refused(&Request { stop: unknown, ..good.clone() }, &["4000"]);
}

#[test]
fn stop_strings_need_a_tokenizer_and_tokens_alone_do_not() {
    let tiny = tiny("tiny-llama");
    let mut generator = tiny.over(16, 1, None);
    let (params, stop) = (SamplingParams::greedy(), tiny.long(5));
    let request = Request::new(&PROMPT, &params, &stop);
    let got = generator.run(&request.build(), |_, _| true).unwrap().choices.remove(0);
    assert_eq!((got.tokens.len(), got.text.as_str()), (5, ""));
    let text = StopRules { strings: vec!["x".into()], ..stop.clone() };
    let error = generator.run(&Request { stop: text, ..request }.build(), |_, _| true).unwrap_err();
    assert!(error.to_string().contains("tokenizer"), "{error}");
}

#[test]
fn a_row_without_a_token_is_an_error_that_says_so() {
    let tiny = tiny("tiny-llama");
    let params = SamplingParams {
        allowed_tokens: Some(vec![3]),
        banned_tokens: vec![3],
        ..SamplingParams::default()
    };
    let stop = tiny.long(5);
    let request = Request { n: 2, ..Request::new(&PROMPT, &params, &stop) };
    let mut generator = tiny.generator(16, 2);
    let error = generator.run(&request.build(), |_, _| true).unwrap_err();
    assert!(error.to_string().contains("no token can be sampled"), "{error}");
    empty(&generator, "after an error");
}
