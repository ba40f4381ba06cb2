//! A steady decode step over blocks allocates nothing: counted, with an allocator that counts.

#[path = "../../l1-tensor/tests/support/counting.rs"]
mod counting;
mod models;

use counting::fewest_allocations;
use l1_tensor::{DType, Precision};
use l2_model::Session;
use l3_paged_kv::{PagedOptions, PagedState};
use models::{load, runtime};

/// Thirty steps a round: blocks fill, get their hashes, and new ones are taken, some of which lose
/// theirs.
#[test]
fn a_steady_decode_step_over_blocks_allocates_nothing() {
    for (name, precision, dtype, threads, block_size) in [
        ("tiny-llama", Precision::F32, DType::F32, 1, 1),
        ("tiny-llama", Precision::Bf16, DType::BF16, 2, 16),
        ("tiny-mistral", Precision::Bf16, DType::F8E4M3, 1, 8),
        ("tiny-qwen3", Precision::Bf16, DType::BF16, 2, 4),
    ] {
        let rt = runtime(precision, threads);
        let decoder = load(name, &rt);
        let options = PagedOptions::new(1, 200, block_size, dtype);
        let state = PagedState::new(decoder.config(), options).unwrap();
        let mut session = Session::with_state(&decoder, &rt, Box::new(state), 200).unwrap();
        // What an earlier text left in the cache is evicted on the way.
        session.feed(&[9; 150]).unwrap();
        session.rollback(0).unwrap();
        session.feed(&[1, 2, 3]).unwrap();
        let mut token = 4;
        let made = fewest_allocations(5, || {
            for _ in 0..30 {
                session.feed(&[token]).unwrap();
                token += 1;
            }
        });
        assert_eq!(
            made, 0,
            "allocations of thirty steps: {name}, {precision}, {dtype}, {threads} threads, blocks of {block_size}"
        );
    }
}
