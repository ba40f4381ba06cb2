//! What goes through the model, and what is left of it.

use l2_model::SequenceState;
use l4_sampler::SamplingParams;
use l4_sampler::generate::{Request, Work};
use l4_sampler::stop::{StopReason, StopRules};

use crate::support::{Kind, PROMPT, Watched, answers, generate, tiny};

#[test]
fn the_prompt_is_computed_once_and_copied_over_contiguous_state() {
    let tiny = tiny("tiny-llama");
    let (params, stop) = (SamplingParams::default(), tiny.long(6));
    let request = Request { n: 4, ..Request::new(&PROMPT, &params, &stop) };
    let work = generate(&mut tiny.generator(Kind::Contiguous, 4), &request).work;
    // The last token of an answer is fed to nobody.
    let expected =
        Work { prompt_computed: 10, answer_tokens: 4 * 5, steps: 1 + 5, ..Work::default() };
    assert_eq!(work, expected, "four answers of six tokens to a prompt of ten");
}

#[test]
fn full_blocks_of_the_prompt_are_shared_over_paged_state() {
    let tiny = tiny("tiny-llama");
    let (params, stop) = (SamplingParams::default(), tiny.long(6));
    for (block_size, prompt, first, again) in [
        // Two full blocks of four; two tokens behind them.
        (4, &PROMPT[..], 10 + 3 * 2, (8, 4 * 2)),
        // The second block is full, but its last token must be fed for its logits.
        (4, &PROMPT[..8], 8 + 3 * 4, (4, 4 * 4)),
        (1, &PROMPT[..], 10 + 3, (9, 4)),
        // Nothing is full: the state is copied. And the next request finds nothing.
        (16, &PROMPT[..], 10, (0, 10)),
    ] {
        let request = Request { n: 4, ..Request::new(prompt, &params, &stop) };
        let mut generator = tiny.generator(Kind::Paged(block_size), 4);
        let what = format!("four answers to {} tokens in blocks of {block_size}", prompt.len());
        let work = generate(&mut generator, &request).work;
        let expected = Work {
            prompt_computed: first,
            answer_tokens: 4 * 5,
            // The rest of the prompt travels with the first token.
            steps: 1 + 5,
            ..Work::default()
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
    let (state, watch) = Watched::new(tiny.paged(4, 4));
    let mut generator = tiny.over(Box::new(state), 4);
    let all = answers(&mut generator, &request);
    let rules = StopRules { token_ids: vec![all[0].tokens[4], all[1].tokens[9]], ..long.clone() };
    watch.steps.borrow_mut().clear();
    let request = Request { stop: &rules, ..request };
    let got = answers(&mut generator, &request);
    assert!(got.iter().any(|c| c.tokens.len() <= 5), "{got:?}");
    for (step, slots) in watch.steps.borrow().iter().skip(1).enumerate() {
        let slots: Vec<u32> = slots.iter().map(|(slot, _)| *slot).collect();
        // Step `step` feeds every answer's token of that number, unless it is its last.
        let alive = (0..4).filter(|i| got[*i as usize].tokens.len() > step + 1);
        assert_eq!(slots, alive.collect::<Vec<u32>>(), "slots in step {step}");
    }
}

#[test]
fn nothing_is_left_in_the_state_afterwards() {
    let tiny = tiny("tiny-llama");
    let (params, stop) = (SamplingParams::default(), tiny.long(10));
    let request = Request { n: 3, seed: 1, ..Request::new(&PROMPT, &params, &stop) };
    let (state, watch) = Watched::new(tiny.paged(4, 3));
    let blocks = watch.state.borrow().manager().num_free();
    let mut generator = tiny.over(Box::new(state), 3);
    let empty = |when: &str| {
        let state = watch.state.borrow();
        let lens: Vec<usize> = (0..3).map(|slot| state.len(slot)).collect();
        assert_eq!(lens, [0, 0, 0], "tokens in the slots {when}");
        assert_eq!(state.manager().num_free(), blocks, "free blocks {when}");
    };
    let expected = answers(&mut generator, &request);
    empty("after a request");
    // Its prefill, its first shared step, a step in the middle.
    for steps in [0, 1, 5] {
        watch.fails_after.set(Some(steps));
        let error = generator.run(&request, |_, _| true).unwrap_err();
        assert!(error.to_string().contains("told to fail"), "{error}");
        empty("after an error");
        assert_eq!(answers(&mut generator, &request), expected, "the same request again");
    }
    let mut shown = 0;
    let stopped = generator.run(&request, |_, _| {
        shown += 1;
        shown < 12
    });
    assert!(stopped.unwrap().choices.iter().any(|c| c.reason == StopReason::Receiver));
    empty("after a receiver who had enough");
}
