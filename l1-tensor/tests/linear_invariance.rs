//! Batch invariance: an output row is the same bits alone, in any batch, at any place in it, with
//! any number of threads. The promise everything above this layer is built on.

mod linear_common;

use l1_tensor::cpu::Isa;
use l1_tensor::ops::{Epilogue, linear};
use l1_tensor::{DType, RowOrder, Runtime, Tensor, Weight};
use linear_common::{activations, bits, numbers, random_cases, runtime, weight, zeros};
use proptest::prelude::*;

const EPILOGUES: [Epilogue; 5] =
    [Epilogue::Store, Epilogue::Add, Epilogue::SiluMul, Epilogue::GeluTanhMul, Epilogue::GeluMul];

/// `linear` over rows `from..from + t` of `x`, as bits. Whatever is added to is all ones.
fn rows(
    rt: &Runtime,
    x: &Tensor,
    w: &Weight,
    bias: &Tensor,
    (from, t): (usize, usize),
    epilogue: Epilogue,
) -> Vec<u32> {
    let folds = !matches!(epilogue, Epilogue::Store | Epilogue::Add);
    let width = if folds { w.n() / 2 } else { w.n() };
    let mut out = Tensor::from_slice(&vec![1.0f32; t * width], &[t, width]).unwrap();
    let x = x.view().narrow(0, from, t).unwrap();
    linear(rt, x, w, Some(bias.view()), epilogue, out.view_mut()).unwrap();
    bits(&out)
}

fn check(isa: Isa, k: usize, n: usize, total: usize, parts: &[(usize, usize)], seed: u64) {
    let (x, w, bias) = (numbers(seed, total * k), numbers(seed + 1, n * k), numbers(seed + 2, n));
    let bias = Tensor::from_slice(&bias, &[n]).unwrap();
    let threads: Vec<Runtime> = (1..=4).map(|t| runtime(isa, t)).collect();
    let w = weight(&threads[0], &w, n, k, RowOrder::GateUp);
    for dtype in [DType::F32, DType::BF16] {
        let x = activations(&x, total, k, dtype);
        for epilogue in EPILOGUES {
            let solo: Vec<Vec<u32>> =
                (0..total).map(|i| rows(&threads[0], &x, &w, &bias, (i, 1), epilogue)).collect();
            for (i, (from, t)) in parts.iter().enumerate() {
                let rt = &threads[i % threads.len()];
                let got = rows(rt, &x, &w, &bias, (*from, *t), epilogue);
                let want = solo[*from..from + t].concat();
                assert!(
                    got == want,
                    "{isa} {dtype} {epilogue:?}: rows {from}..{} differ from each alone",
                    from + t
                );
            }
        }
    }
}

#[test]
fn a_row_alone_is_the_same_bits_as_in_a_batch_of_any_size() {
    for isa in Isa::available() {
        // Portable code without fused multiply-adds in hardware is slow: fewer sizes will do.
        let step = if isa == Isa::Portable { 7 } else { 1 };
        let parts: Vec<_> = (1..=64).step_by(step).map(|m| ((m * 5) % (65 - m), m)).collect();
        check(isa, 37, 70, 64, &parts, 3);
    }
}

#[test]
fn prefill_sized_batches_cut_anywhere_give_the_same_bits() {
    let parts = [(0, 300), (0, 128), (128, 172), (0, 129), (129, 171), (7, 1), (250, 50), (1, 299)];
    for isa in Isa::available() {
        check(isa, 9, 420, 300, &parts, 11);
    }
}

#[test]
fn the_layer_shapes_of_a_real_model_are_invariant_too() {
    // SmolLM2-135M's fused gate and up projection, a decode batch and a prefill chunk.
    let isa = Isa::best();
    let parts = [(0, 2), (1, 5), (3, 8), (0, 12), (2, 11), (0, 13), (0, 13)];
    check(isa, 576, 3072, 13, &parts, 17);
}

#[test]
fn a_strided_batch_gives_the_same_bits_as_a_dense_one() {
    let (t, k, n) = (17, 33, 64);
    let values = numbers(1, t * (k + 3));
    let w = numbers(2, n * k);
    for isa in Isa::available() {
        let rt = runtime(isa, 2);
        let w = weight(&rt, &w, n, k, RowOrder::Plain);
        for dtype in [DType::F32, DType::BF16] {
            let wide = activations(&values, t, k + 3, dtype);
            let view = wide.view().narrow(1, 3, k).unwrap();
            let dense = activations(&view.to_vec_f32().unwrap(), t, k, dtype);
            let (mut a, mut b) = (zeros(t, n, DType::F32), zeros(t, n, DType::F32));
            linear(&rt, view, &w, None, Epilogue::Store, a.view_mut()).unwrap();
            linear(&rt, dense.view(), &w, None, Epilogue::Store, b.view_mut()).unwrap();
            assert_eq!(bits(&a), bits(&b), "{isa} {dtype}");
        }
    }
}

proptest! {
    #![proptest_config(random_cases(24))]

    #[test]
    fn any_shape_any_cut_any_thread_count(
        k in 0usize..80, half in 0usize..60, total in 1usize..40, cut in 0usize..40,
        seed in 0u64..1 << 40,
    ) {
        let cut = cut.min(total);
        for isa in Isa::available() {
            check(isa, k, 2 * half, total, &[(0, total), (0, cut), (cut, total - cut)], seed);
        }
    }
}
