//! The manager against a naive model of itself, over random stories.
//!
//! The model (oracle/naive.rs) is what one would write without a thought about speed: vectors, and a
//! cache that is searched from its beginning by comparing tokens. Beside it, a memory that is really
//! written (oracle/memory.rs) says which block holds what, so that "a hit never returns a block that
//! was not computed, or is not about to be in this very step" is looked at, not believed.
//!
//! A failure prints the shortest story that still fails, one sentence for each thing that happened.
//! `PROPTEST_CASES=5000 cargo test -p l3-paged-kv --test blocks oracle::` tells more of them.

mod memory;
mod naive;
mod world;

use std::panic::{AssertUnwindSafe, catch_unwind};

use proptest::prelude::*;
use proptest::test_runner::{TestCaseError, TestError, TestRunner};
use world::{Deed, World};

fn deeds() -> impl Strategy<Value = Vec<Deed>> {
    let deed = prop_oneof![
        6 => (0u8..6, 1u8..24, 0u8..5, any::<bool>(), 0u8..3).prop_map(
            |(prompt, len, chunk, whole, keep_free)| Deed::Admit { prompt, len, chunk, whole, keep_free }
        ),
        6 => (any::<u8>(), 1u8..7).prop_map(|(who, tokens)| Deed::Advance { who, tokens }),
        1 => (any::<u8>(), 1u8..7).prop_map(|(who, tokens)| Deed::Reserve { who, tokens }),
        3 => any::<u8>().prop_map(|who| Deed::Free { who }),
        1 => (any::<u8>(), any::<u8>()).prop_map(|(who, len)| Deed::RollBack { who, len }),
        3 => Just(Deed::Commit),
        1 => Just(Deed::Abandon),
        1 => Just(Deed::Reset),
    ];
    prop::collection::vec(deed, 1..60)
}

/// Run random stories over pools of one kind; panic with the shortest that fails.
fn tell(num_blocks: usize, block_size: usize, prefix_caching: bool) {
    let config = ProptestConfig { failure_persistence: None, ..ProptestConfig::default() };
    let outcome = TestRunner::new(config).run(&deeds(), |deeds| {
        let mut world = World::new(num_blocks, block_size, prefix_caching);
        let run = catch_unwind(AssertUnwindSafe(|| deeds.iter().try_for_each(|d| world.run(d))));
        let what = match run {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(what)) => what,
            Err(panic) => match panic.downcast_ref::<String>() {
                Some(text) => format!("it panicked: {text}"),
                None => format!("it panicked: {:?}", panic.downcast_ref::<&str>()),
            },
        };
        Err(TestCaseError::fail(format!("{}\n{what}", world.story())))
    });
    match outcome {
        Ok(()) => {}
        Err(TestError::Fail(story, _)) => panic!("the shortest story that fails:\n{story}"),
        Err(other) => panic!("{other}"),
    }
}

#[test]
fn small_blocks_in_a_small_pool() {
    tell(12, 2, true);
}

#[test]
fn blocks_of_one_token() {
    tell(20, 1, true);
}

#[test]
fn larger_blocks_in_a_larger_pool() {
    tell(24, 4, true);
}

#[test]
fn without_prefix_caching() {
    tell(12, 2, false);
}
