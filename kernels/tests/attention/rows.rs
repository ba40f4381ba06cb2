//! The kernel that takes every head size and both caches.

use kernels::Float;

use crate::case::{Case, batch};
use crate::common::{gpu, under_every_order};

/// Lengths around the kernel's tiles of 32 keys, a chunk, a whole prompt, padding.
const MIXED: [(usize, usize); 7] = [(1, 1), (1, 31), (1, 32), (1, 33), (5, 70), (34, 34), (1, 0)];

#[test]
fn an_f32_cache_gives_softmax_to_single_precision_at_any_head_size_and_group() {
    let gpu = gpu().unwrap();
    for (dim, group, kv_heads) in [(16, 1, 2), (18, 3, 1), (64, 2, 2), (1, 4, 1), (33, 1, 1)] {
        Case::new(group, kv_heads, dim, Float::F32).check(&gpu, &batch(&MIXED));
    }
}

#[test]
fn a_bf16_cache_with_a_head_size_without_tensor_core_kernel_is_as_exact() {
    let gpu = gpu().unwrap();
    for (dim, group) in [(18, 2), (32, 4), (130, 1)] {
        let case = Case::new(group, 1, dim, Float::Bf16);
        assert!(!case.tensor_cores());
        case.check(&gpu, &batch(&[(1, 40), (3, 33), (1, 0)]));
    }
}

#[test]
fn blocks_may_have_any_size() {
    let gpu = gpu().unwrap();
    for block_size in [1, 8, 24, 70] {
        let case = Case { block_size, ..Case::new(2, 1, 20, Float::F32) };
        case.check(&gpu, &batch(&[(2, 70), (1, 25), (1, 1)]));
    }
}

#[test]
fn a_window_leaves_each_query_its_last_keys() {
    let gpu = gpu().unwrap();
    for window in [1, 8, 33, 100] {
        let case = Case { window: Some(window), ..Case::new(1, 2, 24, Float::F32) };
        case.check(&gpu, &batch(&[(1, 90), (40, 101), (3, 3)]));
    }
}

#[test]
fn scores_of_any_size_neither_overflow_nor_vanish() {
    let gpu = gpu().unwrap();
    for sharpness in [1e-6, 300.0] {
        let case = Case { sharpness, ..Case::new(2, 1, 16, Float::F32) };
        case.check(&gpu, &batch(&[(1, 100), (2, 64)]));
    }
}

#[test]
fn the_output_may_be_bf16() {
    let gpu = gpu().unwrap();
    let case = Case { out: Float::Bf16, ..Case::new(2, 1, 20, Float::F32) };
    case.check(&gpu, &batch(&[(1, 40), (3, 3), (1, 0)]));
}

#[test]
fn no_order_of_threads_changes_a_bit() {
    let gpu = gpu().unwrap();
    let case = Case::new(3, 1, 18, Float::F32);
    let batch = batch(&[(1, 70), (2, 33)]);
    under_every_order(|| crate::common::bytes(&case.attend(&gpu, &batch)));
}
