//! At temperature 0 this layer adds nothing to what the model's layer does.

use l2_model::generate::generate;
use l2_model::{GenerateOptions, Session};
use l4_sampler::SamplingParams;
use l4_sampler::stop::{StopReason, StopRules};

use crate::support::{BLOCKS, MAX_LEN, PROMPT, Request, answers, reason};
use crate::tiny::tiny;

const MODELS: [&str; 4] = ["tiny-llama", "tiny-mistral", "tiny-qwen2", "tiny-qwen3"];

#[test]
fn greedy_tokens_are_those_of_the_model_floor_over_every_state() {
    for name in MODELS {
        let tiny = tiny(name);
        let mut session = Session::new(&tiny.decoder, &tiny.rt, MAX_LEN).unwrap();
        let options = GenerateOptions { max_tokens: 48, ignore_eos: true, ..Default::default() };
        let expected = generate(&mut session, &PROMPT, &options, |_| true).unwrap().tokens;
        for block in BLOCKS {
            let (params, stop) = (SamplingParams::greedy(), tiny.long(48));
            let request = Request::new(&PROMPT, &params, &stop);
            let got = answers(&mut tiny.generator(block, 1), &request);
            assert_eq!(got[0].tokens, expected, "greedy tokens of {name} over blocks of {block}");
            assert_eq!(reason(&got[0]), StopReason::Length, "{name} over blocks of {block}");
        }
    }
}

#[test]
fn an_end_token_ends_the_answer_and_is_its_last_token() {
    let tiny = tiny("tiny-llama");
    let params = SamplingParams::greedy();
    let mut generator = tiny.generator(16, 1);
    let long = tiny.long(48);
    let all = answers(&mut generator, &Request::new(&PROMPT, &params, &long)).remove(0).tokens;
    // The first token that has not come before.
    let at = (5..).find(|i| !all[..*i].contains(&all[*i])).unwrap();
    let stop = StopRules { eos: vec![all[at]], max_tokens: 48, ..StopRules::default() };
    let got = answers(&mut generator, &Request::new(&PROMPT, &params, &stop)).remove(0);
    assert_eq!(got.tokens, all[..=at], "tokens up to the end token");
    assert_eq!(reason(&got), StopReason::Eos(all[at]));
    let go_on = StopRules { ignore_eos: true, ..stop };
    let got = answers(&mut generator, &Request::new(&PROMPT, &params, &go_on)).remove(0);
    assert_eq!(got.tokens, all, "tokens when the end is ignored");
}

#[test]
fn every_answer_is_the_same_at_temperature_0() {
    let tiny = tiny("tiny-qwen3");
    let (params, stop) = (SamplingParams::greedy(), tiny.long(12));
    let request = Request { n: 3, ..Request::new(&PROMPT, &params, &stop) };
    let got = answers(&mut tiny.generator(4, 3), &request);
    assert_eq!(got.len(), 3);
    assert!(got.iter().all(|choice| choice.tokens == got[0].tokens), "{got:?}");
    assert_eq!(got.iter().map(|c| c.sample).collect::<Vec<_>>(), [0, 1, 2]);
}
