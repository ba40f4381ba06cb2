//! Where an answer may end, and where it must.

use l4_sampler::TokenMask;
use l4_sampler::guide::{GuideError, GuideSpec, Guides};

use crate::support::{World, allowed, choice, llama, push, regex, schema, worlds};

/// The end tokens among those allowed.
fn ends(world: &World, guide: &mut l4_sampler::guide::Guide) -> Vec<u32> {
    let tokens = allowed(guide, world.vocab);
    tokens.into_iter().filter(|t| world.ends.contains(t)).collect()
}

#[test]
fn end_tokens_are_allowed_exactly_where_the_answer_is_complete() {
    for world in worlds() {
        for (spec, text, complete_at) in [
            (schema(r#"{"type":"integer"}"#), "-120", &[2, 3, 4][..]),
            (regex("ab?c*"), "abcc", &[1, 2, 3, 4]),
            (choice(&["yes", "yes, please"]), "yes, please", &[3, 11]),
            (GuideSpec::Json, r#"[1,{}]"#, &[6]),
        ] {
            let mut guide = world.guide(&spec);
            for (at, c) in text.char_indices() {
                let here = ends(world, &mut guide);
                let complete = complete_at.contains(&at);
                let want: &[u32] = if complete { &world.ends } else { &[] };
                let (place, over) = (&text[..at], world.name);
                assert_eq!(here, want, "end tokens allowed behind `{place}` over {over}");
                assert_eq!(guide.is_complete(), complete, "whether `{place}` is complete, {over}");
                // One byte at a time, also where the tokenizer would take more.
                let byte = world.vocab_of(&c.to_string());
                guide.advance(byte).unwrap();
            }
            assert!(guide.is_complete(), "`{text}` over {}", world.name);
            assert_eq!(ends(world, &mut guide), world.ends, "ends behind `{text}`");
        }
    }
}

#[test]
fn behind_an_answer_that_nothing_may_follow_there_are_only_ends() {
    for world in worlds() {
        for (spec, text) in [
            (schema(r#"{"type":"boolean"}"#), "true"),
            (choice(&["a", "b"]), "b"),
            (regex("x{3}"), "xxx"),
            (schema(r#"{"type":"array","items":{"type":"null"}}"#), "[null]"),
        ] {
            let mut guide = world.guide(&spec);
            assert!(!guide.is_finished(), "`{text}` before its beginning");
            push(world, &mut guide, text);
            assert!(guide.is_finished(), "`{text}` is all there is, {}", world.name);
            let tokens = allowed(&mut guide, world.vocab);
            assert_eq!(tokens, world.ends, "tokens behind `{text}` over {}", world.name);
        }
    }
}

#[test]
fn an_end_token_ends_an_answer_that_might_go_on() {
    let world = llama();
    let mut guide = world.guide(&regex("[0-9]+"));
    let end = world.ends[0];
    let refused = guide.advance(end);
    assert_eq!(refused, Err(GuideError::Refused { token: end, after: 0 }), "an end at once");
    push(world, &mut guide, "12");
    guide.advance(end).unwrap();
    assert!(guide.is_finished(), "behind an end token");
    assert_eq!(allowed(&mut guide, world.vocab), world.ends, "tokens behind an end token");
    assert_eq!(guide.forced(), [0_u32; 0], "forced tokens behind an end token");
    let digit = world.vocab_of("3");
    let after = guide.followed();
    let refused = guide.advance(digit);
    assert_eq!(refused, Err(GuideError::Refused { token: digit, after }), "text behind an end");
}

#[test]
fn an_answer_taken_back_from_its_end_goes_on() {
    let world = llama();
    let mut guide = world.guide(&regex("[0-9]+"));
    push(world, &mut guide, "12");
    let before = allowed(&mut guide, world.vocab);
    guide.advance(world.ends[0]).unwrap();
    guide.advance(world.ends[1]).unwrap();
    guide.rollback(1).unwrap();
    assert!(guide.is_finished(), "one end token is left");
    guide.rollback(1).unwrap();
    assert!(!guide.is_finished(), "no end token is left");
    assert_eq!(allowed(&mut guide, world.vocab), before, "tokens after the way back");
}

#[test]
fn without_end_tokens_a_guide_still_knows_when_it_is_finished() {
    let world = llama();
    let guides = Guides::new(&world.tokenizer, world.vocab, &[]).unwrap();
    let mut guide = guides.guide(&choice(&["yes", "no"])).unwrap();
    push(world, &mut guide, "no");
    assert!(guide.is_finished() && guide.is_complete());
    let mut mask = TokenMask::default();
    guide.mask(&mut mask).unwrap();
    assert_eq!(mask.count(), 0, "tokens behind the end where no token ends anything");
}
