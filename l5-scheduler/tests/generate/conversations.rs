//! The turns of a conversation: what an earlier turn left in the prefix cache is not computed again.

use l4_sampler::SamplingParams;

use crate::support::{MAX_LEN, PROMPT, Request, answers, empty, generate, same};
use crate::tiny::tiny;

#[test]
fn a_prompt_that_goes_on_costs_what_lies_behind_its_full_blocks() {
    let tiny = tiny("tiny-llama");
    let (params, stop) = (SamplingParams::default(), tiny.long(12));
    for (block, cached) in [(1, 21), (4, 20), (16, 16)] {
        let mut generator = tiny.generator(block, 1);
        let request = Request { seed: 2, ..Request::new(&PROMPT, &params, &stop) };
        let first = answers(&mut generator, &request).remove(0);
        let next: Vec<u32> = [&PROMPT[..], &first.tokens, &[8, 9, 10]].concat();
        let request = Request { prompt: next.clone(), ..request };
        let second = generate(&mut generator, &request);
        // Of 22 tokens the last was never computed.
        let found = (second.work.prompt_cached, second.work.prompt_computed);
        assert_eq!(found, (cached, 25 - cached), "cached and computed, in blocks of {block}");
        same("the second turn", &second.choices, &tiny.alone(&request));
        // Another conversation; then the same message again, of which at least the last token is computed.
        let other = Request { prompt: vec![7; 3], ..request };
        let work = generate(&mut generator, &other).work;
        assert_eq!((work.prompt_cached, work.prompt_computed), (0, 3), "in blocks of {block}");
        let again = if block == 1 { 2 } else { 0 };
        let work = generate(&mut generator, &other).work;
        let found = (work.prompt_cached, work.prompt_computed);
        assert_eq!(found, (again, 3 - again), "the same again, in blocks of {block}");
    }
}

#[test]
fn a_turn_that_is_refused_or_stopped_leaves_the_next_one_as_it_would_be() {
    let tiny = tiny("tiny-llama");
    let (params, stop) = (SamplingParams::default(), tiny.long(12));
    let mut generator = tiny.generator(4, 1);
    let request = Request { seed: 2, ..Request::new(&PROMPT, &params, &stop) };
    let expected = answers(&mut generator, &request);
    let long = Request { prompt: vec![1; MAX_LEN], ..request.clone() };
    generator.run(&long.build(), |_, _| true).unwrap_err();
    generator.run(&request.build(), |_, _| false).unwrap();
    empty(&generator, "after a turn that was stopped");
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        generator.run(&request.build(), |_, _| panic!("a receiver that panics"))
    }));
    assert!(panicked.is_err());
    assert_eq!(answers(&mut generator, &request), expected, "the same turn again");
}
