//! Greedy generation.

use nano::generate::{generate, generate_without_cache};
use nano::toy::Toy;

#[test]
fn the_tiny_model_ends_its_sentences() {
    let toy = Toy::load();
    for (prompt, want) in [
        ("the cat sat on the", "mat ."),
        ("the dog ran on the", "road ."),
        ("the cat", "sat on the mat ."),
        ("the dog", "ran on the road ."),
    ] {
        let done = generate(&toy.model, &toy.encode(prompt).unwrap(), 10, &[toy.stop()]);
        assert_eq!(toy.decode(&done.tokens), want, "behind `{prompt}`");
    }
}

#[test]
fn every_token_but_the_last_is_computed_once() {
    let toy = Toy::load();
    let prompt = toy.encode("the cat sat on the").unwrap();
    let done = generate(&toy.model, &prompt, 10, &[toy.stop()]);
    assert_eq!((done.tokens.len(), done.passes), (2, 5 + 1));
    let one = generate(&toy.model, &prompt, 1, &[]);
    assert_eq!((one.tokens.len(), one.passes), (1, 5));
    let none = generate(&toy.model, &prompt, 0, &[]);
    assert_eq!((none.tokens.len(), none.passes), (0, 5));
}

#[test]
fn the_output_ends_at_its_maximum_or_at_a_stop_token() {
    let toy = Toy::load();
    let prompt = toy.encode("the cat").unwrap();
    let done = generate(&toy.model, &prompt, 3, &[toy.stop()]);
    assert_eq!(toy.decode(&done.tokens), "sat on the");
    let on = toy.encode("on").unwrap();
    assert_eq!(toy.decode(&generate(&toy.model, &prompt, 10, &on).tokens), "sat on");
}

#[test]
fn without_a_cache_the_tokens_are_the_same_and_the_work_is_not() {
    let toy = Toy::load();
    let prompt = toy.encode("the cat").unwrap();
    let stop = [toy.stop()];
    let (with, without) = (
        generate(&toy.model, &prompt, 10, &stop),
        generate_without_cache(&toy.model, &prompt, 10, &stop),
    );
    assert_eq!(with.tokens, without.tokens);
    // 2 + 4 tokens are computed, against 2 + 3 + 4 + 5 + 6.
    assert_eq!((with.passes, without.passes), (6, 20));
}
