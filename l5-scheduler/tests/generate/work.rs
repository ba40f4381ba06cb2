//! What is computed for a request, and what is left of it.

use l4_sampler::SamplingParams;
use l4_sampler::stop::{StopReason, StopRules};
use l5_scheduler::engine::EngineOptions;
use l5_scheduler::generate::{Generator, Work};
use l5_scheduler::speculation::SpeculativeConfig;
use l5_scheduler::{DraftCounts, Engine, Llm};

use crate::support::{PROMPT, Request, answers, empty, generate, reason};
use crate::tiny::tiny;

#[test]
fn full_blocks_of_the_prompt_are_computed_once() {
    let tiny = tiny("tiny-llama");
    let (params, stop) = (SamplingParams::default(), tiny.long(6));
    for (block_size, prompt, first, again) in [
        // Two full blocks of four; two tokens behind them.
        (4, &PROMPT[..], 10 + 3 * 2, (8, 4 * 2)),
        // The second block is full, but its last token must be computed for its logits.
        (4, &PROMPT[..8], 8 + 3 * 4, (4, 4 * 4)),
        (1, &PROMPT[..], 10 + 3, (9, 4)),
        // Nothing is full. And the next request finds nothing.
        (16, &PROMPT[..], 4 * 10, (0, 4 * 10)),
    ] {
        let request = Request { n: 4, ..Request::new(prompt, &params, &stop) };
        let mut generator = tiny.generator(block_size, 4);
        let what = format!("four choices for {} tokens in blocks of {block_size}", prompt.len());
        let work = generate(&mut generator, &request).work;
        // The last token of a choice is never computed.
        let expected = Work {
            prompt_cached: 0,
            prompt_computed: first,
            output_computed: 4 * 5,
            steps: 6,
            sampling_rows: 4 * 6,
        };
        assert_eq!(work, expected, "{what}");
        let work = generate(&mut generator, &request).work;
        let found = (work.prompt_cached, work.prompt_computed);
        assert_eq!(found, again, "cached and computed, the second time: {what}");
    }
}

#[test]
fn an_answer_that_has_ended_leaves_the_batch_at_once() {
    let tiny = tiny("tiny-llama");
    let params = SamplingParams::default();
    let long = tiny.long(24);
    let request = Request { n: 4, seed: 5, ..Request::new(&PROMPT, &params, &long) };
    let mut generator = tiny.generator(4, 4);
    let all = answers(&mut generator, &request);
    let rules = StopRules { token_ids: vec![all[0].tokens[4], all[1].tokens[9]], ..long.clone() };
    let got = generate(&mut generator, &Request { stop: rules, ..request });
    let lens: Vec<usize> = got.choices.iter().map(|c| c.tokens.len()).collect();
    assert!(lens.iter().any(|len| *len <= 5), "{lens:?}");
    let computed: usize = lens.iter().map(|len| len - 1).sum();
    assert_eq!(got.work.output_computed, computed, "{lens:?}");
    assert_eq!(got.work.steps, *lens.iter().max().unwrap(), "one step for each token: {lens:?}");
}

#[test]
fn a_row_brings_one_token_and_those_of_its_drafts_that_are_accepted() {
    let tiny = tiny("tiny-llama");
    // Of two tokens each occurred before, and either may follow.
    let allowed_tokens = Some(vec![17, 100]);
    let (params, stop) = (SamplingParams { allowed_tokens, ..Default::default() }, tiny.long(40));
    let request = Request { seed: 3, ..Request::new(&PROMPT, &params, &stop) };
    let plain = generate(&mut tiny.generator(4, 1), &request);
    let none = DraftCounts::default();
    assert_eq!((plain.drafts, plain.work.sampling_rows), (none, 40), "without speculation");
    let config = r#"{"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 1, "window": "fixed"}"#;
    let options = EngineOptions {
        max_model_len: Some(64),
        speculative: Some(SpeculativeConfig::from_json(config).unwrap()),
        ..EngineOptions::default()
    };
    let model = tiny.model(Some(tiny.tokenizer.clone()));
    let mut generator = Generator::open(model.clone(), &options).unwrap();
    let drafted = generate(&mut generator, &request);
    assert_eq!(drafted.choices, plain.choices, "drafts change no token");
    let DraftCounts { proposed, accepted } = drafted.drafts;
    assert!(0 < accepted && accepted < proposed, "{:?}", drafted.drafts);
    assert_eq!(drafted.work.sampling_rows + accepted, 40);
    assert_eq!(drafted.work.output_computed, 39, "rejected drafts are no output");
    let llm = Llm::over(Engine::new(model, &options).unwrap());
    let outputs = llm.run(vec![request.build().request]).unwrap();
    assert_eq!(outputs[0].tokens, plain.choices[0].tokens);
    assert_eq!(outputs[0].drafts, drafted.drafts, "the engine's thread counts the same");
}

#[test]
fn nothing_is_left_afterwards() {
    let tiny = tiny("tiny-llama");
    let (params, stop) = (SamplingParams::default(), tiny.long(10));
    let request = Request { n: 3, seed: 1, ..Request::new(&PROMPT, &params, &stop) };
    let mut generator = tiny.generator(4, 3);
    let expected = answers(&mut generator, &request);
    let mut shown = 0;
    let stopped = generator.run(&request.build(), |_, _| {
        shown += 1;
        shown < 12
    });
    assert!(stopped.unwrap().choices.iter().any(|c| reason(c) == StopReason::Receiver));
    empty(&generator, "after a receiver that has enough");
    assert_eq!(answers(&mut generator, &request), expected, "the same request again");
}

#[test]
fn more_choices_than_seats_wait_for_one() {
    let tiny = tiny("tiny-llama");
    let (params, stop) = (SamplingParams::default(), tiny.long(8));
    let request = Request { n: 5, seed: 3, ..Request::new(&PROMPT, &params, &stop) };
    let expected = answers(&mut tiny.generator(4, 5), &request);
    assert_eq!(answers(&mut tiny.generator(4, 2), &request), expected, "two at a time");
}
