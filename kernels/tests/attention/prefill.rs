//! Chunks of queries in tiles, and steps that have both chunks and decode rows.

use kernels::Float;
use kernels::ops::Arithmetic;

use crate::case::{Case, batch, bits};
use crate::common::{bytes, gpu, under_every_order};

#[test]
fn every_head_size_and_group_gives_softmax() {
    let gpu = gpu().unwrap();
    for (dim, group, kv_heads) in [(64, 1, 2), (80, 2, 1), (96, 3, 1), (128, 4, 1), (64, 8, 1)] {
        let case = Case::new(group, kv_heads, dim, Float::Bf16);
        case.check(&gpu, &batch(&[(20, 70)]));
    }
}

#[test]
fn chunks_of_any_length_anywhere_in_a_sequence_are_right() {
    let gpu = gpu().unwrap();
    // Batch-invariant: for few queries, too, it is this kernel.
    let arithmetic = Arithmetic::BatchInvariant;
    let case = Case { arithmetic, ..Case::new(2, 1, 64, Float::Bf16) };
    // Tiles of 64 keys; of 128 rows, which are 64 queries here.
    for (q_len, kv_len) in
        [(2, 2), (63, 63), (64, 64), (65, 65), (70, 130), (2, 128), (3, 129), (17, 200)]
    {
        case.check(&gpu, &batch(&[(q_len, kv_len)]));
    }
}

#[test]
fn a_step_of_chunks_decode_rows_and_padding_is_right_in_every_row() {
    let gpu = gpu().unwrap();
    for group in [1, 3] {
        let case = Case::new(group, 1, 64, Float::Bf16);
        case.check(
            &gpu,
            &batch(&[(1, 200), (30, 30), (1, 1), (0, 0), (5, 77), (1, 0), (3, 0), (1, 64)]),
        );
    }
}

#[test]
fn every_block_finds_its_tile_among_many_sequences() {
    let gpu = gpu().unwrap();
    // Up to three tiles of 128 rows, which are 32 queries here, and sequences that have none.
    let lens: Vec<(usize, usize)> =
        (0..75).map(|s| [(1, 9), (70, 70), (0, 0), (33, 40), (2, 3)][s * s % 5]).collect();
    for arithmetic in [Arithmetic::Fast, Arithmetic::BatchInvariant] {
        let case = Case { arithmetic, ..Case::new(4, 1, 64, Float::Bf16) };
        for count in [1, 32, 33, 75] {
            case.check(&gpu, &batch(&lens[..count]));
        }
    }
}

#[test]
fn queries_before_the_first_key_see_nothing_and_those_behind_them_all_there_is() {
    let gpu = gpu().unwrap();
    for cache in [Float::Bf16, Float::F32] {
        for window in [None, Some(2)] {
            let case = Case { window, ..Case::new(2, 1, 64, cache) };
            case.check(&gpu, &batch(&[(9, 4), (70, 5), (3, 3)]));
        }
    }
}

#[test]
fn a_decode_row_in_a_mixed_step_is_the_decode_kernels() {
    let gpu = gpu().unwrap();
    let case = Case::new(2, 1, 64, Float::Bf16);
    let width = case.heads() * case.dim;
    let mixed = case.attend(&gpu, &batch(&[(1, 300), (20, 77)]));
    // As many sequences, bounds and so splits, but no chunk.
    let decode = case.attend(&gpu, &batch(&[(1, 300), (1, 77)]));
    assert_eq!(bits(&mixed[..width]), bits(&decode[..width]));
}

#[test]
fn bounds_of_a_larger_step_change_nothing() {
    let gpu = gpu().unwrap();
    let loose =
        Case { max_q_len: Some(300), max_kv_len: Some(1000), ..Case::new(2, 1, 64, Float::Bf16) };
    loose.check(&gpu, &batch(&[(4, 70), (1, 9)]));
    loose.check(&gpu, &batch(&[(1, 9)]));
}

#[test]
fn blocks_may_have_any_size() {
    let gpu = gpu().unwrap();
    for block_size in [1, 8, 24, 130] {
        let case = Case { block_size, ..Case::new(1, 1, 64, Float::Bf16) };
        case.check(&gpu, &batch(&[(4, 130), (19, 19)]));
    }
}

#[test]
fn a_window_leaves_each_query_its_last_keys() {
    let gpu = gpu().unwrap();
    for window in [1, 8, 100] {
        let case = Case { window: Some(window), ..Case::new(2, 1, 64, Float::Bf16) };
        case.check(&gpu, &batch(&[(70, 210), (3, 150)]));
    }
}

#[test]
fn scores_of_any_size_neither_overflow_nor_vanish() {
    let gpu = gpu().unwrap();
    for sharpness in [1e-6, 300.0] {
        let case = Case { sharpness, ..Case::new(1, 1, 64, Float::Bf16) };
        case.check(&gpu, &batch(&[(17, 130)]));
    }
}

#[test]
fn the_output_may_be_bf16() {
    let gpu = gpu().unwrap();
    let case = Case { out: Float::Bf16, ..Case::new(4, 1, 64, Float::Bf16) };
    case.check(&gpu, &batch(&[(25, 70), (2, 0)]));
}

#[test]
fn a_nan_among_the_queries_is_not_hidden() {
    let gpu = gpu().unwrap();
    let case = Case { sharpness: f32::NAN, ..Case::new(2, 1, 64, Float::Bf16) };
    assert!(case.attend(&gpu, &batch(&[(23, 70)])).iter().all(|x| x.is_nan()));
}

#[test]
fn no_order_of_threads_changes_a_bit() {
    let gpu = gpu().unwrap();
    let case = Case::new(2, 1, 64, Float::Bf16);
    let batch = batch(&[(20, 140)]);
    under_every_order(|| bytes(&case.attend(&gpu, &batch)));
}
