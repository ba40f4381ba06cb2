//! The way back: after any walk and any steps back, a guide is the one that never went there.

use l4_sampler::TokenMask;
use l4_sampler::guide::{Guide, GuideError, GuideSpec};
use proptest::prelude::*;

use crate::support::{Dice, World, allowed, choice, ids, llama, push, regex, schema, worlds};

fn specs() -> Vec<GuideSpec> {
    vec![
        GuideSpec::Json,
        schema(
            r#"{"type":"object","properties":{"id":{"type":"integer"},"tags":{"type":"array","items":{"enum":["a","ab"]}},
            "note":{"type":"string","maxLength":5}},"required":["id"],"additionalProperties":false}"#,
        ),
        regex("([ab]{2}|c+d)*e?"),
        choice(&["yes", "yes and no", "no"]),
        // The middle is the same on both ways, and what comes behind it is not.
        GuideSpec::Lark("start: \"a\" n \"c\" | \"b\" n \"d\"\nn: /[0-9]+/".into()),
        GuideSpec::Lark("start: \"(\" start \")\" | /x+/".into()),
    ]
}

/// All that can be seen of a guide.
fn looks(guide: &mut Guide, vocab: usize) -> (Vec<u32>, bool, bool, Vec<u32>, usize) {
    let mask = allowed(guide, vocab);
    (mask, guide.is_complete(), guide.is_finished(), guide.forced(), guide.followed())
}

/// Walk by chance: allowed tokens, tokens that spell part of what is forced, forced tokens in one go, ends behind the end.
fn walk(world: &World, guide: &mut Guide, tokens: &mut Vec<u32>, dice: &mut Dice, steps: usize) {
    for _ in 0..steps {
        let forced = if dice.chance(30) { guide.forced() } else { Vec::new() };
        let next =
            if forced.is_empty() { vec![*dice.pick(&allowed(guide, world.vocab))] } else { forced };
        for token in next {
            // Some steps are taken without a look at the mask, as forced tokens and drafts are.
            guide.advance(token).unwrap();
            tokens.push(token);
            if dice.chance(50) {
                let _ = guide.is_complete();
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 160, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_walk_taken_back_is_a_walk_never_taken(seed in any::<u64>(), which in 0..6_usize, over in 0..6_usize) {
        let world = &worlds()[over];
        let spec = &specs()[which];
        let mut dice = Dice::new(seed);
        let (mut guide, mut tokens) = (world.guide(spec), Vec::new());
        for _ in 0..4 {
            let steps = dice.below(12);
            walk(world, &mut guide, &mut tokens, &mut dice, steps);
            let back = dice.below(tokens.len() + 1);
            guide.rollback(back).unwrap();
            tokens.truncate(tokens.len() - back);

            let mut replay = world.guide(spec);
            for &token in &tokens {
                replay.advance(token).unwrap();
            }
            prop_assert_eq!(
                looks(&mut guide, world.vocab),
                looks(&mut replay, world.vocab),
                "a guide that came back {} tokens to {:?} (left) and one that never went further, {} over {}",
                back,
                world.text(&tokens),
                which,
                world.name
            );
        }
    }

    #[test]
    fn masks_along_a_draft_are_those_of_each_step(seed in any::<u64>(), which in 0..6_usize) {
        let world = llama();
        let spec = &specs()[which];
        let mut dice = Dice::new(seed);
        let (mut guide, mut tokens) = (world.guide(spec), Vec::new());
        let steps = dice.below(8);
        walk(world, &mut guide, &mut tokens, &mut dice, steps);

        let (mut ahead, mut draft) = (guide.clone(), Vec::new());
        let steps = dice.below(6);
        walk(world, &mut ahead, &mut draft, &mut dice, steps);
        let good = draft.len();
        draft.resize(good + dice.below(3), world.vocab as u32 - 1);

        let before = looks(&mut guide, world.vocab);
        // A buffer that was used before, for a longer draft.
        let mut masks = vec![TokenMask::none(7); 9];
        guide.masks_along(&draft, &mut masks).unwrap();
        prop_assert_eq!(masks.len(), good + 1, "masks for {} good tokens of {}", good, draft.len());
        prop_assert_eq!(looks(&mut guide, world.vocab), before, "the guide has not moved");
        for (i, mask) in masks.iter().enumerate() {
            prop_assert_eq!(ids(mask, world.vocab), allowed(&mut guide, world.vocab), "mask {}", i);
            if i < good {
                guide.advance(draft[i]).unwrap();
            }
        }
    }
}

#[test]
fn one_step_back_is_one_token_back() {
    let world = llama();
    let mut guide = world.guide(&regex("abcdefg"));
    let tokens: Vec<u32> = "abcdef".chars().map(|c| world.vocab_of(&c.to_string())).collect();
    for &token in &tokens {
        guide.advance(token).unwrap();
    }
    for n in (0..tokens.len()).rev() {
        guide.rollback(1).unwrap();
        assert_eq!(guide.followed(), n, "tokens left");
        guide.advance(tokens[n]).unwrap();
        guide.rollback(1).unwrap();
    }
    guide.rollback(0).unwrap();
    assert_eq!(guide.followed(), 0, "tokens left after no step back");
}

#[test]
fn the_same_middle_on_another_way_has_another_end() {
    let world = llama();
    let spec = GuideSpec::Lark("start: \"a\" n \"c\" | \"b\" n \"d\"\nn: /[0-9]+/".into());
    let mut guide = world.guide(&spec);
    let letter = |text: &str| world.vocab_of(text);
    for (first, last) in [("a", "c"), ("b", "d"), ("a", "c")] {
        guide.advance(letter(first)).unwrap();
        guide.advance(letter("7")).unwrap();
        let tokens = allowed(&mut guide, world.vocab);
        let letters: Vec<&str> =
            ["c", "d"].into_iter().filter(|l| tokens.contains(&letter(l))).collect();
        assert_eq!(letters, [last], "what may end `{first}7`");
        guide.rollback(2).unwrap();
    }
}

#[test]
fn more_than_was_followed_cannot_be_taken_back() {
    let world = llama();
    let mut guide = world.guide(&regex("a+"));
    push(world, &mut guide, "a");
    guide.advance(world.ends[0]).unwrap();
    let before = guide.followed();
    let refused = guide.rollback(before + 1);
    let want = Err(GuideError::TooFarBack { followed: before, back: before + 1 });
    assert_eq!(refused, want, "one step too many");
    assert_eq!(guide.followed(), before, "nothing was taken back");
    guide.rollback(before).unwrap();
    assert_eq!(guide.followed(), 0, "all was taken back");
}

#[test]
fn a_refused_token_leaves_the_guide_where_it_was() {
    let world = llama();
    for spec in specs() {
        let mut guide = world.guide(&spec);
        let mut dice = Dice::new(9);
        let mut tokens = Vec::new();
        walk(world, &mut guide, &mut tokens, &mut dice, 5);
        let before = looks(&mut guide, world.vocab);
        let after = guide.followed();
        for token in
            [world.vocab_of("\u{7f}"), world.vocab as u32 - 1, world.vocab as u32, u32::MAX]
        {
            if before.0.contains(&token) {
                continue;
            }
            let refused = guide.advance(token);
            assert_eq!(refused, Err(GuideError::Refused { token, after }), "token {token}");
            assert_eq!(looks(&mut guide, world.vocab), before, "after token {token} was refused");
        }
    }
}
