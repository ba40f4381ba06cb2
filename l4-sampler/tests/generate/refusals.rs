//! What cannot be meant is refused before anything runs.

use l4_sampler::SamplingParams;
use l4_sampler::generate::{Generator, Request};
use l4_sampler::stop::StopRules;

use crate::support::{Kind, MAX_LEN, PROMPT, Watched, tiny};

#[test]
fn requests_that_cannot_be_meant() {
    let tiny = tiny("tiny-llama");
    let (state, watch) = Watched::new(tiny.paged(16, 2));
    let mut generator = tiny.over(Box::new(state), 2);
    let (params, stop) = (SamplingParams::default(), tiny.long(5));
    let good = Request::new(&PROMPT, &params, &stop);
    let mut refused = |request: &Request, words: &[&str]| {
        let error = generator.run(request, |_, _| true).unwrap_err().to_string();
        for word in words {
            assert!(error.contains(word), "`{word}` in {error}");
        }
        assert!(watch.steps.borrow().is_empty(), "nothing ran: {error}");
    };
    refused(&Request { prompt: &[], ..good }, &["prompt is empty"]);
    let long = [1; MAX_LEN];
    refused(&Request { prompt: &long, ..good }, &["400 tokens", "context holds 400"]);
    refused(&Request { n: 0, ..good }, &["n must be at least 1"]);
    refused(&Request { n: 2, best_of: 1, ..good }, &["best_of", "at least n", "got 1"]);
    refused(&Request { n: 3, ..good }, &["slots", "got 3"]);
    refused(&Request { n: 1, best_of: 3, ..good }, &["best_of", "slots", "got 3"]);
    let hot = SamplingParams { temperature: -1.0, ..params.clone() };
    refused(&Request { params: &hot, ..good }, &["temperature"]);
    let banned = SamplingParams { banned_tokens: vec![1, 389], ..params.clone() };
    refused(&Request { params: &banned, ..good }, &["banned_tokens", "389"]);
    let empty = StopRules { strings: vec!["x".into(), String::new()], ..stop.clone() };
    refused(&Request { stop: &empty, ..good }, &["stop string is empty"]);
    let unknown = StopRules { token_ids: vec![4000], ..stop.clone() };
    refused(&Request { stop: &unknown, ..good }, &["4000"]);
}

#[test]
fn stop_strings_need_a_tokenizer_and_tokens_alone_do_not() {
    let tiny = tiny("tiny-llama");
    let state = tiny.state(Kind::Paged(16), 1);
    let mut generator = Generator::new(&tiny.decoder, None, &tiny.rt, state, 1, MAX_LEN).unwrap();
    let (params, stop) = (SamplingParams::greedy(), tiny.long(5));
    let request = Request::new(&PROMPT, &params, &stop);
    let got = generator.run(&request, |_, _| true).unwrap().choices.remove(0);
    assert_eq!((got.tokens.len(), got.text.as_str()), (5, ""));
    let text = StopRules { strings: vec!["x".into()], ..stop.clone() };
    let error = generator.run(&Request { stop: &text, ..request }, |_, _| true).unwrap_err();
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
    let mut generator = tiny.generator(Kind::Paged(16), 2);
    let error = generator.run(&request, |_, _| true).unwrap_err();
    assert!(error.to_string().contains("no token is left to choose"), "{error}");
    assert_eq!(generator.state().len(0), 0);
}
