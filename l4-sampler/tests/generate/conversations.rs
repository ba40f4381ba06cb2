//! An answer that stays in the state for the next turn.

use l4_sampler::SamplingParams;
use l4_sampler::generate::Request;

use crate::support::{Kind, PROMPT, answers, generate, tiny};

#[test]
fn a_prompt_that_goes_on_costs_only_what_is_new() {
    let tiny = tiny("tiny-llama");
    let (params, stop) = (SamplingParams::default(), tiny.long(12));
    for kind in [Kind::Contiguous, Kind::Paged(16)] {
        let mut generator = tiny.generator(kind, 1).keeping();
        let request = Request { seed: 2, ..Request::new(&PROMPT, &params, &stop) };
        let first = answers(&mut generator, &request).remove(0);
        let next: Vec<u32> = [&PROMPT[..], &first.tokens, &[8, 9, 10]].concat();
        let request = Request { prompt: &next, ..request };
        let second = generate(&mut generator, &request);
        // The answer's last token was not fed to anybody yet.
        assert_eq!(second.work.prompt_cached, 10 + 11, "tokens that were there, over {kind:?}");
        assert_eq!(second.work.prompt_computed, 1 + 3, "tokens that are new, over {kind:?}");
        let fresh = answers(&mut tiny.generator(kind, 1), &request);
        assert_eq!(second.choices, fresh, "the second answer over {kind:?}");
        // Another conversation; then the same message again, of which all but a token is there.
        let other = [7, 7, 7];
        let work = generate(&mut generator, &Request { prompt: &other, ..request }).work;
        assert_eq!((work.prompt_cached, work.prompt_computed), (0, 3), "over {kind:?}");
        let work = generate(&mut generator, &Request { prompt: &other, ..request }).work;
        assert_eq!((work.prompt_cached, work.prompt_computed), (2, 1), "over {kind:?}");
    }
}

#[test]
fn a_turn_that_fails_leaves_nothing_and_the_next_one_is_right() {
    let tiny = tiny("tiny-llama");
    let (params, stop) = (SamplingParams::default(), tiny.long(12));
    let (state, watch) = crate::support::Watched::new(tiny.paged(4, 1));
    let mut generator = tiny.over(Box::new(state), 1).keeping();
    let request = Request { seed: 2, ..Request::new(&PROMPT, &params, &stop) };
    let expected = answers(&mut generator, &request);
    watch.fails_after.set(Some(3));
    generator.run(&request, |_, _| true).unwrap_err();
    assert_eq!(generator.state().len(0), 0, "tokens in the state after an error");
    assert_eq!(answers(&mut generator, &request), expected, "the same turn again");
}
