//! Batches nobody thought of.

use kernels::Float;
use kernels::ops::Arithmetic;
use proptest::prelude::*;

use crate::case::{Case, batch};
use crate::common::gpu;

fn float() -> impl Strategy<Value = Float> {
    prop_oneof![Just(Float::F32), Just(Float::Bf16)]
}

fn arithmetic() -> impl Strategy<Value = Arithmetic> {
    prop_oneof![Just(Arithmetic::Fast), Just(Arithmetic::BatchInvariant)]
}

/// Half of them sequences with one query, some of them padding.
fn lens() -> impl Strategy<Value = (usize, usize)> {
    prop_oneof![
        (Just(1_usize), 0..280_usize),
        (0..40_usize, 0..100_usize).prop_map(|(q_len, past)| (q_len, q_len + past)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_batch_of_any_shape_gives_softmax(
        lens in prop::collection::vec(lens(), 1..5),
        (group, kv_heads) in (1..6_usize, 1..3_usize),
        dim in prop_oneof![3 => Just(64_usize), 1 => Just(80), 1 => 1..40_usize],
        block_size in 1..40_usize,
        window in prop::option::of(1..150_usize),
        (cache, out, arithmetic) in (float(), float(), arithmetic()),
        (more_queries, more_keys) in (0..50_usize, 0..600_usize),
    ) {
        let gpu = gpu().unwrap();
        let longest = |of: fn(&(usize, usize)) -> usize| lens.iter().map(of).max().unwrap_or(0);
        let case = Case {
            block_size,
            window,
            out,
            arithmetic,
            max_q_len: Some(longest(|l| l.0) + more_queries),
            max_kv_len: Some(longest(|l| l.1) + more_keys),
            ..Case::new(group, kv_heads, dim, cache)
        };
        case.check(&gpu, &batch(&lens));
    }
}
