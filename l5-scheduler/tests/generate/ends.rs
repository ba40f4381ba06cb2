//! Why answers end.

use l4_sampler::SamplingParams;
use l4_sampler::stop::{StopReason, StopRules};

use crate::support::{MAX_LEN, PROMPT, Request, answers, reason};
use crate::tiny::tiny;

#[test]
fn an_answer_of_no_tokens_is_one() {
    let tiny = tiny("tiny-llama");
    let (params, stop) = (SamplingParams::default(), tiny.long(0));
    let request = Request { n: 2, ..Request::new(&PROMPT, &params, &stop) };
    for choice in answers(&mut tiny.generator(16, 2), &request) {
        assert_eq!((choice.tokens.len(), choice.text.as_str()), (0, ""));
        assert_eq!(reason(&choice), StopReason::Length);
    }
}

#[test]
fn the_end_of_the_context_is_an_end() {
    let tiny = tiny("tiny-llama");
    let params = SamplingParams::default();
    let stop = tiny.long(usize::MAX);
    let request = Request { n: 2, ..Request::new(&PROMPT, &params, &stop) };
    for choice in answers(&mut tiny.generator(16, 2), &request) {
        assert_eq!(choice.tokens.len(), MAX_LEN - PROMPT.len());
        assert_eq!(reason(&choice), StopReason::Length);
    }
}

#[test]
fn a_receiver_who_has_enough_of_one_answer_gets_the_others() {
    let tiny = tiny("tiny-llama");
    let (params, stop) = (SamplingParams::default(), tiny.long(20));
    let request = Request { n: 3, seed: 9, ..Request::new(&PROMPT, &params, &stop) };
    let mut generator = tiny.generator(4, 3);
    let all = answers(&mut generator, &request);
    let mut asked = 0;
    let got = generator.run(&request.build(), |i, _| {
        asked += usize::from(i == 1);
        i != 1 || asked < 5
    });
    let got = got.unwrap().choices;
    assert_eq!((&got[0], &got[2]), (&all[0], &all[2]), "the answers that went on");
    assert_eq!(got[1].tokens, all[1].tokens[..5], "the answer that was stopped");
    assert_eq!(reason(&got[1]), StopReason::Receiver);
}

#[test]
fn a_stop_string_ends_an_answer_wherever_tokens_begin() {
    let tiny = tiny("tiny-llama");
    let params = SamplingParams::default();
    let long = tiny.long(40);
    let mut generator = tiny.generator(16, 1);
    let mut crossed = 0;
    for seed in 0..20 {
        let request = Request { seed, ..Request::new(&PROMPT, &params, &long) };
        let whole = answers(&mut generator, &request).remove(0);
        // Two characters that come one after the other, and not before.
        let chars: Vec<(usize, char)> = whole.text.char_indices().collect();
        let Some(pair) = chars.windows(3).skip(6).find(|w| {
            let text = &whole.text[w[0].0..w[2].0];
            !text.contains('\u{fffd}') && whole.text.find(text) == Some(w[0].0)
        }) else {
            continue;
        };
        let (at, end) = (pair[0].0, pair[2].0);
        let stop = StopRules { strings: vec![whole.text[at..end].into()], ..long.clone() };
        let got =
            answers(&mut generator, &Request { stop: stop.clone(), ..request.clone() }).remove(0);
        assert_eq!(got.text, whole.text[..at], "the text before {:?}", stop.strings);
        assert_eq!(reason(&got), StopReason::Text(stop.strings[0].clone()));
        assert_eq!(got.tokens, whole.tokens[..got.tokens.len()], "its tokens");
        let last = tiny.tokenizer.token_bytes(*got.tokens.last().unwrap()).unwrap();
        crossed += usize::from(last.len() < stop.strings[0].len());
        let include = StopRules { include_stop_str: true, ..stop };
        let got = answers(&mut generator, &Request { stop: include.clone(), ..request.clone() })
            .remove(0);
        assert_eq!(got.text, whole.text[..end], "the text with its stop string");
    }
    assert!(crossed > 3, "{crossed} stop strings began in one token and ended in another");
}

#[test]
fn an_answer_of_at_least_so_many_tokens_is_as_long() {
    let tiny = tiny("tiny-llama");
    // All but a few tokens end the answer.
    let ends: Vec<u32> = (0..380).collect();
    let stop = StopRules { token_ids: ends.clone(), max_tokens: 30, ..StopRules::default() };
    let mut generator = tiny.generator(512, 1);
    for min_tokens in [0, 1, 7] {
        let params = SamplingParams { min_tokens, ..SamplingParams::default() };
        let request = Request { seed: 4, ..Request::new(&PROMPT, &params, &stop) };
        let got = answers(&mut generator, &request).remove(0);
        let (last, before) = got.tokens.split_last().unwrap();
        assert!(ends.contains(last), "{got:?}");
        assert!(before.len() >= min_tokens, "{min_tokens} tokens before the end: {got:?}");
        assert!(before[..min_tokens].iter().all(|t| !ends.contains(t)), "{got:?}");
    }
}

#[test]
fn joined_to_its_prompt_an_answer_that_continues_it_reads_as_decoded_together() {
    // SentencePiece drops the space before the first word of a text.
    let tiny = tiny("tiny-mistral");
    let prompt = tiny.tokenizer.encode("the end.", true).unwrap();
    let (params, stop) = (SamplingParams::default(), tiny.long(30));
    let mut generator = tiny.generator(16, 1);
    let mut differed = 0;
    for seed in 0..20 {
        let request = Request { seed, continues: true, ..Request::new(&prompt, &params, &stop) };
        let got = answers(&mut generator, &request).remove(0);
        let decode = |ids: &[u32]| tiny.tokenizer.decode(ids, true).unwrap();
        let both = decode(&[&prompt[..], &got.tokens].concat());
        assert_eq!(decode(&prompt) + &got.text, both, "prompt and answer");
        let own =
            answers(&mut generator, &Request { continues: false, ..request.clone() }).remove(0);
        assert_eq!(own.text, decode(&own.tokens), "an answer that stands for itself");
        differed += usize::from(own.text != got.text);
    }
    assert!(differed > 0, "the two ways to read an answer differ for some answers");
}
