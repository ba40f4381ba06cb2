//! Attention over blocks: equal to the formula on what the cache holds, and to itself, bit for bit,
//! wherever the keys lie and whoever computes which part.

mod attention_common;
mod support;

use attention_common::*;
use l1_tensor::cpu::Isa;
use l1_tensor::ops::{
    AttentionParams, AttentionScratch, AttentionShape, KvCache, Sequences, attention,
};
use l1_tensor::{DType, Device, Tensor, bf16};
use proptest::prelude::*;
use support::*;

const DTYPES: [DType; 3] = [DType::F32, DType::BF16, DType::F8E4M3];
const SIZES: [usize; 8] = [1, 2, 4, 8, 16, 32, 48, 256];

/// Short contexts mostly, and some that are longer than two splits (of 512 keys).
fn shapes() -> impl Strategy<Value = (AttentionShape, Option<usize>)> {
    let before = prop_oneof![3 => 0usize..70, 1 => 480usize..560, 1 => 1000usize..1100];
    let window = prop_oneof![
        2 => Just(None),
        1 => (1usize..40).prop_map(Some),
        1 => (400usize..700).prop_map(Some)
    ];
    let dims = (1usize..20, before, 1usize..3, 1usize..4, 1usize..40);
    (dims, window).prop_map(|((q_len, before, kv_heads, group, head_dim), window)| {
        let (q_heads, kv_len) = (kv_heads * group, before + q_len);
        (AttentionShape { q_len, kv_len, q_heads, kv_heads, head_dim }, window)
    })
}

/// How far from the formula on stored keys and values: f32 sums another way; else the weights are
/// rounded to eight bits once more, each by at most 2^-9 of itself, and values are below 1.
fn allowed(dtype: DType) -> Allowed {
    within(0.0, if dtype == DType::F32 { 4e-6 } else { 4e-3 })
}

proptest! {
    #![proptest_config(random_cases(40))]

    #[test]
    fn agrees_with_the_reference_on_what_is_stored(
        (shape, window) in shapes(), seed in 0u64..1000, size in prop::sample::select(&SIZES[..]),
        cut in 0usize..20, (beside, _) in shapes(), padding in 0usize..3, forget: bool,
    ) {
        let mut case = Case::random(shape, window, seed);
        // Queries are rounded where keys are, so let there be nothing to round.
        case.q.iter_mut().for_each(|x| *x = bf16::from_f32(*x).to_f32());
        let beside = AttentionShape { q_len: beside.q_len, kv_len: beside.kv_len, ..shape };
        let beside = Case::random(beside, window, seed + 7);
        let cut = cut % shape.q_len;
        let mut plan = Plan::scattered(&case, size, seed + 3)
            .chunked(&[cut, shape.q_len - cut])
            .beside(&beside);
        plan.padding = padding;
        plan.forget = forget;
        for dtype in DTYPES {
            for isa in Isa::available() {
                let ran = run_and_read(&runtime(isa, 2), &case, dtype, &plan).unwrap();
                let what = case.described(&format!("{dtype} in blocks of {size} on {isa}"));
                let expected = ran.stored.reference();
                let off = differences(what, &case.dims(), &ran.out, &expected, allowed(dtype));
                prop_assert!(off.is_none(), "{}", off.unwrap_or_default());
            }
        }
    }

    #[test]
    fn a_token_has_the_same_bits_in_any_chunking_batch_block_size_and_thread_count(
        (shape, window) in shapes(), seed in 0u64..1000, size in prop::sample::select(&SIZES[..]),
        cut in 0usize..100, (beside, _) in shapes(),
    ) {
        let case = Case::random(shape, window, seed);
        let beside = AttentionShape { q_len: beside.q_len, kv_len: beside.kv_len, ..shape };
        let beside = Case::random(beside, window, seed + 7);
        let cut = cut % shape.q_len;
        let two = [cut, shape.q_len - cut];
        let plan = Plan::contiguous(&case);
        let scattered = Plan::scattered(&case, size, seed + 3);
        for isa in Isa::available() {
            for dtype in DTYPES {
                let expected = to_bits(&run(&runtime(isa, 1), &case, dtype, &plan).unwrap());
                for (name, plan, threads) in [
                    ("on two threads", plan.clone(), 2),
                    ("decoded one by one", plan.clone().chunked(&vec![1; shape.q_len]), 3),
                    ("scattered, in two chunks", scattered.clone().chunked(&two), 2),
                    ("beside another sequence", scattered.clone().beside(&beside), 1),
                ] {
                    let got = to_bits(&run(&runtime(isa, threads), &case, dtype, &plan).unwrap());
                    prop_assert!(
                        got == expected,
                        "{isa} {dtype}: {name} differs, blocks of {size}, {shape:?} {window:?}"
                    );
                }
            }
        }
    }
}

#[test]
fn block_sizes_differ_in_nothing_that_can_be_seen() {
    // Longer than two splits, and ending inside of a block of every size.
    let shape = AttentionShape { q_len: 3, kv_len: 1077, q_heads: 4, kv_heads: 2, head_dim: 18 };
    for window in [None, Some(9), Some(600)] {
        let case = Case::random(shape, window, 31);
        for isa in Isa::available() {
            for dtype in DTYPES {
                let plan = Plan::contiguous(&case);
                let expected = run(&runtime(isa, 1), &case, dtype, &plan).unwrap();
                for size in SIZES {
                    // In order, where small blocks add up to whole tiles, and anywhere.
                    let orders = [Plan::blocks(&case, size), Plan::scattered(&case, size, 5)];
                    for (order, plan) in ["in order", "scattered"].into_iter().zip(orders) {
                        let plan = plan.chunked(&[1, 2]);
                        let got = run(&runtime(isa, 2), &case, dtype, &plan).unwrap();
                        let ran = format!("{dtype} on {isa}, blocks of {size}, {order}");
                        let what = case.described(&ran);
                        assert_close(what, &case.dims(), &got, &expected, SAME_BITS);
                    }
                }
            }
        }
    }
}

#[test]
fn threads_that_share_a_context_find_what_one_finds() {
    // Few heads and many splits: the case in which a sequence's keys are dealt to threads.
    for (q_len, kv_len, window) in [
        (1, 2100, None),
        (1, 513, None),
        (3, 1600, None),
        (2, 1600, Some(1030)),
        // The first query sees the end of a split that the last one does not see at all.
        (6, 1029, Some(8)),
        (6, 1029, Some(518)),
    ] {
        let shape = AttentionShape { q_len, kv_len, q_heads: 2, kv_heads: 1, head_dim: 20 };
        let case = Case::random(shape, window, 41);
        for isa in Isa::available() {
            for dtype in DTYPES {
                let mut plan = Plan::contiguous(&case);
                let expected = run(&runtime(isa, 1), &case, dtype, &plan).unwrap();
                let alone = plan.clone().chunked(&vec![1; q_len]);
                plan.padding = 1;
                for (how, plan) in [("at once", plan), ("one by one", alone)] {
                    for threads in [1, 2, 3] {
                        let got = run(&runtime(isa, threads), &case, dtype, &plan).unwrap();
                        let ran = format!("{dtype} on {isa}, {how}, threads {threads}");
                        let what = case.described(&ran);
                        assert_close(what, &case.dims(), &got, &expected, SAME_BITS);
                    }
                }
            }
        }
    }
}

#[test]
fn blocks_behind_the_window_of_the_first_query_are_not_read() {
    let shape = AttentionShape { q_len: 20, kv_len: 90, q_heads: 2, kv_heads: 1, head_dim: 8 };
    for (window, size) in [(1, 1), (7, 4), (7, 8), (20, 16), (33, 32)] {
        let case = Case::random(shape, Some(window), 51);
        for dtype in DTYPES {
            let rt = runtime(Isa::best(), 1);
            let plan = Plan::scattered(&case, size, 6).chunked(&[13, 7]);
            let expected = run(&rt, &case, dtype, &plan).unwrap();
            let got = run(&rt, &case, dtype, &Plan { forget: true, ..plan }).unwrap();
            let what = case.described(&format!("{dtype}, blocks of {size}, those behind are -1"));
            assert_close(what, &case.dims(), &got, &expected, SAME_BITS);
        }
    }
}

#[test]
fn a_block_that_is_needed_must_be_there() {
    let rt = runtime(Isa::best(), 1);
    let cache = KvCache::new(4, 8, 1, 4, DType::F32).unwrap();
    let mut scratch = AttentionScratch::new(&rt, 2, 32, 1, 4).unwrap();
    let mut attend = |kv: [i32; 2], table: &[i32], max_blocks, window| {
        let q = Tensor::zeros(&[2, 1, 4], DType::F32, Device::Cpu).unwrap();
        let mut out = Tensor::zeros(&[2, 4], DType::F32, Device::Cpu).unwrap();
        let cu_seqlens_q = &[0, 1, 2];
        let sequences = Sequences {
            cu_seqlens_q,
            seq_lens_kv: &kv,
            block_table: table,
            max_blocks,
            device: None,
        };
        let params = AttentionParams { scale: 1.0, window };
        attention(&rt, q.view(), &cache, sequences, params, &mut scratch, out.view_mut())
    };
    attend([9, 3], &[3, 0, 2, -1], 2, None).expect("what is not needed may be -1");
    attend([9, 0], &[3, 0, -1, -1], 2, None).expect("a padding row has no blocks");
    attend([9, 0], &[3, 0, 99, 99], 2, None).expect("a padding row has no blocks");
    attend([17, 3], &[-1, 99, 2, 1, -1, -1], 3, Some(1)).expect("what the window left behind");
    assert!(attend([17, 3], &[-1, 99, 2, 1, -1, -1], 3, Some(2)).is_err(), "one key more");
    assert!(attend([9, 3], &[3, -1, 2, -1], 2, None).is_err(), "the second block is missing");
    assert!(attend([9, 3], &[3, 4, 2, -1], 2, None).is_err(), "a block beyond the pool");
    assert!(attend([9, 3], &[3, -2, 2, -1], 2, None).is_err(), "no number of a block");
    assert!(attend([9, 3], &[3, 2], 1, None).is_err(), "rows too short for 9 keys");
    assert!(attend([9, 3], &[3, 1, 2], 2, None).is_err(), "a table that is no rectangle");
}
