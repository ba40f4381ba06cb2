//! Several answers to one prompt: each what it would be alone.

use l1_tensor::Precision;
use l2_model::Session;
use l4_sampler::{
    DrawKey, History, LogprobsOf, LogprobsRequest, Purpose, Row, Sampler, SamplingParams,
};

use crate::runtime::runtime;
use crate::support::{BLOCKS, MAX_LEN, PROMPT, Request, answers, same};
use crate::tiny::{on, tiny};

/// Something of everything that looks at what an answer has said.
fn params(of: LogprobsOf) -> SamplingParams {
    SamplingParams {
        repetition_penalty: 1.1,
        presence_penalty: 0.2,
        frequency_penalty: 0.1,
        temperature: 0.9,
        top_k: 50,
        top_p: 0.95,
        logprobs: Some(LogprobsRequest { top: 3, of }),
        ..SamplingParams::default()
    }
}

#[test]
fn each_answer_of_a_batch_is_what_it_is_alone() {
    for (name, precision, threads) in
        [("tiny-llama", Precision::F32, 2), ("tiny-qwen2", Precision::Bf16, 1)]
    {
        let tiny = on(name, runtime(precision, threads));
        let stop = tiny.long(30);
        for of in [LogprobsOf::Raw, LogprobsOf::Processed] {
            let params = params(of);
            let request = Request { n: 3, seed: 7, ..Request::new(&PROMPT, &params, &stop) };
            let expected = tiny.alone(&request);
            assert_ne!(expected[0].tokens, expected[1].tokens, "samples of one prompt");
            assert_ne!(expected[1].tokens, expected[2].tokens, "samples of one prompt");
            for block in BLOCKS {
                let got = answers(&mut tiny.generator(block, 3), &request);
                same(&format!("{name}, three at once over blocks of {block}"), &got, &expected);
                let mut one = tiny.generator(block, 1);
                let by_itself = |i: u32| {
                    let request = Request { n: 1, first_sample: i, ..request.clone() };
                    answers(&mut one, &request).remove(0)
                };
                let got: Vec<_> = (0..3).map(by_itself).collect();
                same(&format!("{name}, one by one over blocks of {block}"), &got, &expected);
            }
        }
    }
}

/// The loop in its simplest form: the model's layer, a sampler, and the key of each token written out.
#[test]
fn a_token_is_drawn_by_the_number_of_its_seed_its_sample_and_its_place() {
    let tiny = tiny("tiny-llama");
    let (params, stop) = (params(LogprobsOf::Raw), tiny.long(20));
    let request = Request { n: 3, seed: 77, ..Request::new(&PROMPT, &params, &stop) };
    let got = answers(&mut tiny.generator(4, 3), &request);
    for choice in &got {
        let mut session = Session::new(&tiny.decoder, &tiny.rt, MAX_LEN).unwrap();
        let mut sampler = Sampler::new(&tiny.rt, tiny.vocab());
        let mut history = History::new(&PROMPT, 20);
        let (mut tokens, mut feed) = (vec![], PROMPT.to_vec());
        while tokens.len() < 20 {
            let position = (PROMPT.len() + tokens.len()) as u32;
            let key = DrawKey { seed: 77, sample: choice.sample as u32, position };
            let row = Row { params: &params, history: &history, ends: &[], mask: None, key };
            let logits = session.feed(&feed).unwrap().to_vec_f32().unwrap();
            let token =
                sampler.distribution(&logits, &row).unwrap().draw(key.uniform(Purpose::Draw));
            history.push(token);
            tokens.push(token);
            feed = vec![token];
        }
        assert_eq!(choice.tokens, tokens, "sample {}", choice.sample);
    }
}

#[test]
fn a_prompt_longer_than_a_step_is_shared_in_several() {
    let tiny = tiny("tiny-llama");
    let prompt: Vec<u32> = (0..250).map(|i| (i * 37 + i * i) % 300).collect();
    let (params, stop) = (params(LogprobsOf::Raw), tiny.long(8));
    let request = Request { n: 6, seed: 3, ..Request::new(&prompt, &params, &stop) };
    // 122 tokens of the prompt lie in an unfinished block: five times that do not fit a step.
    let got = answers(&mut tiny.generator(128, 6), &request);
    same("six choices for a long prompt", &got, &tiny.alone(&request));
}

#[test]
fn the_seed_decides() {
    let tiny = tiny("tiny-llama");
    let (params, stop) = (params(LogprobsOf::Raw), tiny.long(20));
    let mut generator = tiny.generator(16, 1);
    let mut with = |seed| {
        let request = Request { seed, ..Request::new(&PROMPT, &params, &stop) };
        answers(&mut generator, &request).remove(0)
    };
    let first = with(1);
    assert_eq!(with(1), first, "the same seed, with the prompt in the cache");
    assert_ne!(with(2).tokens, first.tokens, "another seed");
    assert_ne!(with(1 << 32 | 1).tokens, first.tokens, "another seed in its high half only");
}

#[test]
fn an_answer_that_ends_early_leaves_the_others_as_they_are() {
    let tiny = tiny("tiny-llama");
    let params = params(LogprobsOf::Raw);
    let long = tiny.long(24);
    let request = Request { n: 4, seed: 5, ..Request::new(&PROMPT, &params, &long) };
    let all = answers(&mut tiny.generator(4, 4), &request);
    // A token early in one answer that some other does not have at all.
    let stops = |t: &u32| all.iter().any(|c| !c.tokens.contains(t));
    let token = all[1].tokens[2..6].iter().copied().find(stops).unwrap();
    let rules = l4_sampler::stop::StopRules { token_ids: vec![token], ..long.clone() };
    for block in BLOCKS {
        let request = Request { stop: rules.clone(), ..request.clone() };
        let got = answers(&mut tiny.generator(block, 4), &request);
        for (got, whole) in got.iter().zip(&all) {
            let len = whole.tokens.iter().position(|t| *t == token).map_or(24, |at| at + 1);
            assert_eq!(
                got.tokens,
                whole.tokens[..len],
                "sample {} over blocks of {block}",
                got.sample
            );
            assert_eq!(got.logprobs, whole.logprobs[..len], "sample {}", got.sample);
        }
    }
}
