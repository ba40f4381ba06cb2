//! What a result must not depend on.

use kernels::Float::{self, Bf16, F32};
use kernels::ops::Accumulate;
use kernels::ops::Arithmetic::{self, BatchInvariant, Fast};

use crate::common;
use crate::problem::Problem;

/// Every token alone, and in batches of these sizes from the front, has the same bits as among all.
fn alone_and_in_any_batch(
    dtype: Float,
    shape: [usize; 3],
    arithmetic: Arithmetic,
    sizes: &[usize],
) {
    let gpu = common::gpu().unwrap();
    let problem = Problem::new(&gpu, dtype, shape, 11);
    let bits = |p: &Problem| -> Vec<u32> {
        p.linear(Accumulate::Store, arithmetic, F32).iter().map(|y| y.to_bits()).collect()
    };
    let all = bits(&problem);
    let [tokens, rows, _] = shape;
    for t in [0, 1, tokens / 2, tokens - 1] {
        let alone = bits(&problem.of_tokens(t..t + 1));
        assert_eq!(alone, all[t * rows..][..rows], "token {t} alone");
    }
    for &size in sizes {
        let some = bits(&problem.of_tokens(tokens - size..tokens));
        assert_eq!(some, all[(tokens - size) * rows..], "the last {size}");
    }
}

#[test]
fn batch_invariant_products_of_bf16_have_the_same_bits_in_any_batch() {
    alone_and_in_any_batch(Bf16, [70, 36, 96], BatchInvariant, &[2, 16, 17, 64, 65]);
    alone_and_in_any_batch(Bf16, [21, 10, 171], BatchInvariant, &[16, 20]);
}

#[test]
fn batch_invariant_products_of_f32_have_the_same_bits_in_any_batch() {
    alone_and_in_any_batch(F32, [66, 11, 60], BatchInvariant, &[2, 9, 64, 65]);
}

#[test]
fn few_tokens_have_the_same_bits_however_few_they_are() {
    alone_and_in_any_batch(Bf16, [16, 20, 1100], Fast, &[2, 7, 8, 9, 15]);
    alone_and_in_any_batch(F32, [8, 20, 171], Fast, &[2, 7]);
}

#[test]
fn the_order_of_threads_changes_no_bit() {
    let gpu = common::gpu().unwrap();
    for dtype in [Bf16, F32] {
        for shape in [[3, 18, 200], [10, 18, 61], [18, 70, 200]] {
            for arithmetic in [Fast, BatchInvariant] {
                let problem = Problem::new(&gpu, dtype, shape, 12);
                common::under_every_order(|| {
                    let add = Accumulate::Add { scale: 0.5 };
                    common::bytes(&problem.linear(add, arithmetic, F32))
                });
            }
        }
    }
}
