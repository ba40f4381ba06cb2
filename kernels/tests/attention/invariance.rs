//! Batch-invariant arithmetic: a query has the same bits whatever is around it.

use kernels::ops::Arithmetic;
use kernels::{Float, Gpu};
use std::sync::Arc;

use crate::case::{Case, Seq, bits};
use crate::common::gpu;

/// The bits of each query from `from` on.
fn queries(case: &Case, gpu: &Arc<Gpu>, batch: &[Seq], which: usize) -> Vec<u32> {
    let width = case.heads() * case.dim;
    let before: usize = batch[..which].iter().map(|s| s.q_len).sum();
    let out = case.attend(gpu, batch);
    bits(&out[before * width..(before + batch[which].q_len) * width])
}

fn cases() -> Vec<Case> {
    let mut cases = vec![];
    for (group, dim, cache, window) in [
        (2, 64, Float::Bf16, None),
        (3, 64, Float::Bf16, Some(50)),
        (2, 18, Float::Bf16, None),
        (2, 20, Float::F32, Some(40)),
    ] {
        let case = Case::new(group, 1, dim, cache);
        cases.push(Case { window, arithmetic: Arithmetic::BatchInvariant, ..case });
    }
    cases
}

const WHOLE: Seq = Seq { seed: 5, q_len: 135, kv_len: 135 };

#[test]
fn it_is_softmax_too() {
    let gpu = gpu().unwrap();
    for case in cases() {
        let some = Seq { seed: 6, q_len: 3, kv_len: 70 };
        let padding = Seq { seed: 7, q_len: 1, kv_len: 0 };
        case.check(&gpu, &[some, padding, Seq { seed: 8, q_len: 1, kv_len: 130 }]);
    }
}

#[test]
fn a_prompt_in_one_piece_in_chunks_and_token_by_token_has_the_same_bits() {
    let gpu = gpu().unwrap();
    for case in cases() {
        let width = case.heads() * case.dim;
        let whole = queries(&case, &gpu, &[WHOLE], 0);
        for (from, to) in [(0, 1), (0, 70), (63, 66), (70, 135), (64, 65), (134, 135)] {
            let chunk = Seq { q_len: to - from, kv_len: to, ..WHOLE };
            let alone = queries(&case, &gpu, &[chunk], 0);
            assert_eq!(alone, whole[from * width..to * width], "{from}..{to} of {case:?}");
        }
    }
}

#[test]
fn neighbours_and_bounds_change_no_bit() {
    let gpu = gpu().unwrap();
    for case in cases() {
        let decode = Seq { seed: 5, q_len: 1, kv_len: 100 };
        let alone = queries(&case, &gpu, &[decode], 0);
        let other = |seed, q_len, kv_len| Seq { seed, q_len, kv_len };
        let crowd = [other(1, 1, 64), other(2, 40, 90), decode, other(3, 1, 0), other(4, 2, 2)];
        assert_eq!(queries(&case, &gpu, &crowd, 2), alone, "{case:?}");
        let wide = Case { max_kv_len: Some(1024), max_q_len: Some(200), ..case.clone() };
        assert_eq!(queries(&wide, &gpu, &[decode], 0), alone, "{case:?}");
        let small = Case { block_size: 5, ..case.clone() };
        assert_eq!(queries(&small, &gpu, &[decode], 0), alone, "{case:?}");
    }
}
