//! The engine: what a request gets does not depend on the others.

use nano::generate::generate;
use nano::toy::Toy;
use nano::{Engine, Request};
use proptest::prelude::*;

fn engine(toy: &Toy, blocks: usize, budget: usize) -> Engine {
    let mut engine = Engine::new(toy.model.clone(), blocks, 4, budget);
    engine.stop = vec![toy.stop()];
    engine
}

#[test]
fn two_requests_in_one_batch_end_their_own_sentences() {
    let toy = Toy::load();
    let mut engine = engine(&toy, 8, 64);
    for (id, prompt) in ["the cat sat on the", "the dog"].into_iter().enumerate() {
        engine.add(Request::new(id, toy.encode(prompt).unwrap(), 10));
    }
    let (rows, _) = engine.step();
    assert_eq!(rows.iter().map(|row| row.tokens).collect::<Vec<_>>(), [5, 2]);
    let (rows, ended) = engine.step();
    assert_eq!((rows.len(), ended.len()), (2, 1));
    assert_eq!(toy.decode(ended[0].output()), "mat .");
    let ended = engine.run();
    assert_eq!(toy.decode(ended[0].output()), "ran on the road .");
    assert_eq!(engine.scheduler.pool.num_free(), 8);
}

#[test]
fn a_chunk_that_does_not_end_the_prompt_gives_no_token() {
    let toy = Toy::load();
    let mut engine = engine(&toy, 8, 3);
    engine.add(Request::new(0, toy.encode("the cat sat on the").unwrap(), 10));
    engine.step();
    let request = &engine.scheduler.running[0];
    assert_eq!((request.computed, request.tokens.len()), (3, 5));
    engine.step();
    let request = &engine.scheduler.running[0];
    assert_eq!((request.computed, toy.decode(request.output()).as_str()), (5, "mat"));
}

#[test]
fn a_full_pool_preempts_and_changes_no_token() {
    let toy = Toy::load();
    let mut engine = engine(&toy, 3, 64);
    for id in 0..2 {
        engine.add(Request::new(id, toy.encode("the cat").unwrap(), 10));
    }
    let ended = engine.run();
    assert!(engine.scheduler.preemptions > 0, "three blocks are too few for both");
    for request in ended {
        assert_eq!(toy.decode(request.output()), "sat on the mat .");
    }
}

proptest! {
    /// Any requests in any pool that is large enough for each of them: the tokens of each are those that it gets alone, and
    /// all blocks are free in the end.
    #[test]
    fn tokens_do_not_depend_on_the_batch(
        requests in prop::collection::vec((prop::collection::vec(0..9u32, 1..12), 1..10usize), 1..8),
        blocks in 6..20usize,
        budget in 1..30usize,
    ) {
        let toy = Toy::load();
        let mut engine = engine(&toy, blocks, budget);
        for (id, (prompt, max_tokens)) in requests.iter().enumerate() {
            engine.add(Request::new(id, prompt.clone(), *max_tokens));
        }
        let ended = engine.run();
        prop_assert_eq!(ended.len(), requests.len());
        for request in ended {
            let (prompt, max_tokens) = &requests[request.id];
            let alone = generate(&toy.model, prompt, *max_tokens, &[toy.stop()]);
            prop_assert_eq!(request.output(), &alone.tokens[..], "request {}", request.id);
        }
        prop_assert_eq!(engine.scheduler.pool.num_free(), blocks);
    }
}
