//! Compiled once, used by many.

use std::sync::Barrier;

use l4_sampler::guide::{GuideSpec, Guides};

use crate::support::{allowed, choice, llama, push, regex, schema};

fn fresh(capacity: usize) -> Guides {
    let world = llama();
    Guides::new(&world.tokenizer, world.vocab, &world.ends).unwrap().with_cache_capacity(capacity)
}

#[test]
fn what_was_compiled_is_not_compiled_again() {
    let guides = fresh(8);
    for _ in 0..5 {
        guides.guide(&regex("a+")).unwrap();
        guides.guide(&choice(&["a+"])).unwrap();
        guides.guide(&GuideSpec::Lark("start: \"a+\"".into())).unwrap();
    }
    let stats = guides.cache_stats();
    assert_eq!((stats.compilations, stats.hits, stats.kept), (3, 12, 3), "{stats:?}");
}

#[test]
fn schemas_in_another_order_are_other_schemas() {
    let guides = fresh(8);
    let object = |first: &str, second: &str| {
        schema(&format!(
            r#"{{"type":"object","properties":{{"{first}":{{"type":"null"}},"{second}":{{"type":"null"}}}},
            "required":["a","b"],"additionalProperties":false}}"#
        ))
    };
    let (one, other) = (object("a", "b"), object("b", "a"));
    let world = llama();
    for (spec, text) in [(&one, r#"{"a":null,"b":null}"#), (&other, r#"{"b":null,"a":null}"#)] {
        let mut guide = guides.guide(spec).unwrap();
        let (_, done) = push(world, &mut guide, text);
        assert_eq!(&text[..done], text, "properties come in the order of the schema");
    }
    assert_eq!(guides.cache_stats().compilations, 2);
}

#[test]
fn the_one_not_used_for_longest_makes_room() {
    let guides = fresh(2);
    let compiled = |source: &str| {
        let before = guides.cache_stats().compilations;
        guides.guide(&regex(source)).unwrap();
        guides.cache_stats().compilations > before
    };
    assert!(compiled("a") && compiled("b"), "both are new");
    assert!(!compiled("a"), "a is kept");
    assert!(compiled("c"), "c is new, and b makes room for it");
    assert!(!compiled("a") && !compiled("c"), "a was used after b");
    assert!(compiled("b"), "b is gone");
    assert_eq!(guides.cache_stats().kept, 2);
}

#[test]
fn what_failed_is_not_kept() {
    let guides = fresh(4);
    for _ in 0..3 {
        assert!(guides.guide(&regex("(")).is_err());
        assert!(guides.guide(&schema(r#"{"enum":[]}"#)).is_err());
    }
    let stats = guides.cache_stats();
    assert_eq!((stats.compilations, stats.kept), (6, 0), "{stats:?}");
}

#[test]
fn threads_that_ask_for_the_same_at_once_share_one_compilation() {
    let guides = fresh(4);
    let barrier = Barrier::new(8);
    let spec = schema(r#"{"type":"array","items":{"type":"string","maxLength":40}}"#);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                barrier.wait();
                guides.guide(&spec).unwrap();
            });
        }
    });
    let stats = guides.cache_stats();
    assert_eq!((stats.compilations, stats.hits), (1, 7), "{stats:?}");
}

#[test]
fn sequences_of_one_grammar_do_not_see_each_other() {
    let world = llama();
    let spec = regex("(ab|cd)*");
    let (mut one, mut other) = (world.guide(&spec), world.guide(&spec));
    let beginning = allowed(&mut other, world.vocab);
    push(world, &mut one, "abcda");
    assert_eq!(allowed(&mut other, world.vocab), beginning, "the other is at its beginning");
    let mut copy = one.clone();
    let before = allowed(&mut copy, world.vocab);
    push(world, &mut one, "bc");
    assert_eq!(allowed(&mut copy, world.vocab), before, "a copy stays where it was made");
    let (_, done) = push(world, &mut copy, "bab");
    assert_eq!(done, 3, "and goes its own way");
}
