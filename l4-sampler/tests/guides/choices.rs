//! One of some texts.

use l4_sampler::guide::GuideError;

use crate::support::{accepts, allowed, choice, llama, push, refusal, worlds};

#[test]
fn every_choice_can_be_said_and_nothing_else() {
    let choices = [
        "yes",
        "yes, please",
        "no",
        "\"quoted\"",
        "back\\slash",
        "line\nbreak\tand tab",
        "(a|b)*[c]{2}.$^",
        "/regex/",
        "東京 é 🙂",
        " space before",
        "%ignore",
        "\u{2}\u{7f}",
        "<|eot_id|>",
    ];
    for world in worlds() {
        let spec = choice(&choices);
        for text in choices {
            assert!(accepts(world, &spec, text), "{text:?} over {}", world.name);
        }
        for text in ["", "ye", "yes,", "yes, please!", "quoted", "ab", "YES", "line", "no "] {
            assert!(!accepts(world, &spec, text), "{text:?} is no choice, {}", world.name);
        }
    }
}

#[test]
fn a_choice_that_begins_another_is_a_choice_too() {
    let world = llama();
    let mut guide = world.guide(&choice(&["in", "in the end"]));
    push(world, &mut guide, "in");
    let tokens = allowed(&mut guide, world.vocab);
    assert!(tokens.contains(&world.ends[0]), "the shorter one may end");
    assert!(tokens.iter().any(|t| world.bytes(*t).starts_with(b" ")), "the longer one may go on");
}

#[test]
fn the_same_choice_twice_is_a_choice_once() {
    assert!(accepts(llama(), &choice(&["a", "a"]), "a"));
}

#[test]
fn thousands_of_choices_are_no_problem() {
    let world = llama();
    let all: Vec<String> =
        (0..3000).map(|i| format!("item number {}", i * 7919 % 100_003)).collect();
    let all: Vec<&str> = all.iter().map(String::as_str).collect();
    let spec = choice(&all);
    assert!(accepts(world, &spec, all[2718]));
    assert!(!accepts(world, &spec, "item number"));
}

#[test]
fn no_choice_and_an_empty_choice_are_errors_that_say_so() {
    for (choices, words) in [(&[][..], "it is empty"), (&["a", ""], "choice 2 of 2 is empty")] {
        let error = refusal(llama(), &choice(choices));
        assert!(matches!(error, GuideError::Impossible { .. }), "{error:?}");
        assert!(error.to_string().contains(words), "`{error}` should say `{words}`");
    }
}
