//! `linear` against its reference, its epilogues against the ops they stand for, and its errors.

mod linear_common;

use l1_tensor::cpu::Isa;
use l1_tensor::ops::{
    Epilogue, Gelu, gelu_mul, linear, linear::reference, linear_low_rank, silu_mul,
};
use l1_tensor::{DType, Error, LowRank, RowOrder, Tensor, bf16};
use linear_common::{
    Goldens, SAME_BITS, activations, assert_close, bits, numbers, random_cases, rounded, runtime,
    weight, within, zeros,
};
use proptest::prelude::*;

const DTYPES: [DType; 2] = [DType::F32, DType::BF16];

/// Instruction sets whose orders of sums differ, whether this processor has them or not.
const ORDERS: [Isa; 2] = [Isa::Portable, Isa::Amx];

/// The reference on the values a kernel sees: weights rounded to bf16, and `x` too in bf16.
fn expected(
    isa: Isa,
    x: &[f32],
    w: &[f32],
    bias: Option<&[f32]>,
    (t, k, n): (usize, usize, usize),
    dtype: DType,
) -> Vec<f32> {
    let w = rounded(w);
    let mut out = vec![0.0; t * n];
    match dtype {
        DType::F32 => reference::linear(x, &w, bias, t, k, n, &mut out),
        _ => {
            let x: Vec<bf16> = x.iter().map(|v| bf16::from_f32(*v)).collect();
            let linear = match isa {
                Isa::Amx => reference::linear_bf16_tiles,
                _ => reference::linear_bf16,
            };
            linear(&x, &w, bias, t, k, n, &mut out);
        }
    }
    out
}

fn assert_same_bits(got: &[f32], want: &[f32], dims: &[usize], what: &str) {
    assert_close(format!("linear, {what}"), dims, got, want, SAME_BITS);
}

/// Run `linear` on every instruction set and both dtypes and compare with the reference.
fn check(t: usize, k: usize, n: usize, with_bias: bool, seed: u64) {
    let x = numbers(seed, t * k);
    let w = numbers(seed + 1, n * k);
    let bias = with_bias.then(|| numbers(seed + 2, n));
    for isa in Isa::available() {
        let rt = runtime(isa, 2);
        let packed = weight(&rt, &w, n, k, RowOrder::Plain);
        let bias_tensor = bias.as_ref().map(|b| Tensor::from_slice(b, &[n]).unwrap());
        for dtype in DTYPES {
            let what = format!("{dtype} on {isa}, x [{t}, {k}], w [{n}, {k}]");
            let mut out = zeros(t, n, DType::F32);
            linear(
                &rt,
                activations(&x, t, k, dtype).view(),
                &packed,
                bias_tensor.as_ref().map(|b| b.view()),
                Epilogue::Store,
                out.view_mut(),
            )
            .unwrap();
            let want = expected(isa, &x, &w, bias.as_deref(), (t, k, n), dtype);
            assert_same_bits(&out.to_vec_f32().unwrap(), &want, &[t, n], &what);
        }
    }
}

#[test]
fn linear_agrees_with_torch() {
    let goldens = Goldens::open();
    for case in goldens.cases("linear") {
        let (x, w) = (goldens.tensor(&case, "x"), goldens.tensor(&case, "weight"));
        let bias = goldens.maybe(&case, "bias");
        let (t, k, n) = (x.dims()[0], x.dims()[1], w.dims()[0]);
        let (xs, ws) = (x.to_vec_f32().unwrap(), w.to_vec_f32().unwrap());
        let bs = bias.as_ref().map(|b| b.to_vec_f32().unwrap());
        let want = goldens.tensor(&case, "out").to_vec_f32().unwrap();
        // K roundings of a sum of up to K products of size 1, at most; far fewer in practice.
        let f32s = within(2e-6, 2e-5);
        // And in bf16 each activation is rounded to 8 bits: 2^-9 of each product at worst.
        let bf16s = within(4e-3, 4e-3 * (k as f32).sqrt() * 2.0);
        for (dtype, allowed) in [(DType::F32, f32s), (DType::BF16, bf16s)] {
            let what = |on: &str| format!("linear {dtype}, {on}, {case} of torch, x [{t}, {k}]");
            for order in ORDERS {
                let got = expected(order, &xs, &ws, bs.as_deref(), (t, k, n), dtype);
                let what = what(&format!("the reference of {order}"));
                assert_close(what, &[t, n], &got, &want, allowed);
            }
            for isa in Isa::available() {
                let rt = runtime(isa, 1);
                let packed = weight(&rt, &ws, n, k, RowOrder::Plain);
                let mut out = zeros(t, n, DType::F32);
                let input = activations(&xs, t, k, dtype);
                let bias = bias.as_ref().map(Tensor::view);
                linear(&rt, input.view(), &packed, bias, Epilogue::Store, out.view_mut()).unwrap();
                let what = what(&format!("on {isa}"));
                assert_close(what, &[t, n], &out.to_vec_f32().unwrap(), &want, allowed);
            }
        }
    }
}

/// `x w^T` for one row and one output, on every instruction set for which `keeps` and by its reference.
fn assert_sum(x: &[f32], w: &[f32], dtype: DType, keeps: impl Fn(Isa) -> bool, want: f32) {
    let k = x.len();
    for isa in Isa::ALL.into_iter().filter(|isa| keeps(*isa)) {
        let got = expected(isa, x, w, None, (1, k, 1), dtype);
        assert_same_bits(&got, &[want], &[1, 1], &format!("{dtype}, the reference of {isa}"));
        if !isa.is_available() {
            continue;
        }
        let rt = runtime(isa, 1);
        let packed = weight(&rt, w, 1, k, RowOrder::Plain);
        let mut out = zeros(1, 1, DType::F32);
        let input = activations(x, 1, k, dtype);
        linear(&rt, input.view(), &packed, None, Epilogue::Store, out.view_mut()).unwrap();
        let out = out.to_vec_f32().unwrap();
        assert_same_bits(&out, &[want], &[1, 1], &format!("{dtype} on {isa}"));
    }
}

/// Products 2^24, 0, -2^24, 1 in the order of K. Next to 2^24 a 1 is lost, so the sum says when it
/// was added: f32 takes K in order and keeps it, bf16 takes the odd element of a pair first.
#[test]
fn the_odd_element_of_a_bf16_pair_is_added_first() {
    let x = [4096.0f32, 0.0, -4096.0, 1.0];
    let w = [4096.0f32, 1.0, 4096.0, 1.0];
    assert_sum(&x, &w, DType::F32, |_| true, 1.0);
    assert_sum(&x, &w, DType::BF16, |isa| isa != Isa::Amx, 0.0);
}

/// Products 2^24, -2^24, 1 at the beginning of a block of 32, and another 1 in the next. Pairs add the first two and
/// keep both ones. A tile loses the first 1 in the chain of even elements, and keeps that of the second block.
#[test]
fn tiles_add_even_and_odd_elements_apart_and_then_a_block_at_once() {
    let (mut x, mut w) = ([0.0f32; 40], [1.0f32; 40]);
    (x[0], x[1], x[2], x[34]) = (4096.0, -4096.0, 1.0, 1.0);
    (w[0], w[1]) = (4096.0, 4096.0);
    assert_sum(&x, &w, DType::BF16, |isa| isa != Isa::Amx, 2.0);
    assert_sum(&x, &w, DType::BF16, |isa| isa == Isa::Amx, 1.0);
}

proptest! {
    #![proptest_config(random_cases(64))]

    #[test]
    fn every_instruction_set_gives_the_references_bits(
        t in 0usize..40, k in 0usize..140, n in 0usize..140, bias: bool, seed in 0u64..1 << 40,
    ) {
        check(t, k, n, bias, seed);
    }

    /// The bound that any order of summation keeps: `(K + 2) * 2^-24 * sum |x w|`, to first order
    /// (Higham, "Accuracy and Stability of Numerical Algorithms", section 3.1).
    #[test]
    fn sums_stay_within_the_rounding_bound_of_the_exact_product(
        k in 0usize..2000, seed in 0u64..1 << 40,
    ) {
        let (x, w) = (numbers(seed, k), rounded(&numbers(seed + 1, k)));
        for (dtype, order) in [(DType::F32, ORDERS[0]), (DType::BF16, ORDERS[0]), (DType::BF16, ORDERS[1])] {
            let x = if dtype == DType::F32 { x.clone() } else { rounded(&x) };
            let got = f64::from(expected(order, &x, &w, None, (1, k, 1), dtype)[0]);
            let products = || x.iter().zip(&w).map(|(x, w)| f64::from(*x) * f64::from(*w));
            let exact: f64 = products().sum();
            let magnitude: f64 = products().map(f64::abs).sum();
            let bound = (k as f64 + 2.0) * 2f64.powi(-24) * magnitude;
            prop_assert!((got - exact).abs() <= bound, "{got} against {exact}, bound {bound:e}");
        }
    }
}

#[test]
fn sizes_at_the_edges_of_tiles_panels_and_chunks_agree_too() {
    for t in [1, 2, 5, 6, 7, 10, 11, 12, 13, 16, 17, 24, 25, 31, 32, 33, 127, 128, 129, 300] {
        check(t, 19, 65, true, t as u64);
    }
    // Whole blocks of a tile of AMX, with a part of one and without.
    for t in [15, 16, 17, 31, 32, 33] {
        check(t, 83, 65, true, t as u64);
        check(t, 64, 33, false, t as u64);
    }
    check(1, 100_003, 1, true, 1);
    check(2, 1, 4099, true, 2);
    check(257, 3, 33, false, 3);
    check(1, 576, 1000, false, 4);
    check(1, 0, 5, true, 5);
    check(0, 5, 3, true, 6);
}

#[test]
fn nan_and_infinity_reach_their_outputs_and_no_others() {
    let (t, n) = (3, 37);
    let short = [(7, f32::NAN, 0), (7, f32::INFINITY, 6), (7, f32::NEG_INFINITY, 3)];
    let long = [(71, f32::INFINITY, 0), (71, f32::NAN, 31), (71, f32::INFINITY, 32)];
    for (k, poison, at) in short.into_iter().chain(long) {
        let mut w = numbers(7, n * k);
        w.iter_mut().for_each(|w| *w = if *w == 0.0 { 0.5 } else { *w });
        let mut x = numbers(8, t * k);
        x[k + at] = poison;
        for isa in Isa::available() {
            let rt = runtime(isa, 1);
            let packed = weight(&rt, &w, n, k, RowOrder::Plain);
            for dtype in DTYPES {
                let mut out = zeros(t, n, DType::F32);
                let input = activations(&x, t, k, dtype);
                linear(&rt, input.view(), &packed, None, Epilogue::Store, out.view_mut()).unwrap();
                let out = out.to_vec_f32().unwrap();
                let want = expected(isa, &x, &w, None, (t, k, n), dtype);
                let what = format!("{dtype} on {isa}, {poison} in row 1 of x [{t}, {k}]");
                assert_same_bits(&out, &want, &[t, n], &what);
                let hit = |v: &f32| !v.is_finite();
                assert!(out[n..2 * n].iter().all(hit), "{isa} {dtype}: row 1 must carry {poison}");
                assert!(!out[..n].iter().any(hit) && !out[2 * n..].iter().any(hit));
            }
        }
    }
}

#[test]
fn rows_may_lie_apart_on_both_sides_and_nothing_between_them_is_touched() {
    for (t, k) in [(5, 11), (20, 75)] {
        rows_apart(t, k, 40);
    }
}

fn rows_apart(t: usize, k: usize, n: usize) {
    let (x, w) = (numbers(1, t * (k + 6)), numbers(2, n * k));
    let dense: Vec<f32> = (0..t).flat_map(|i| x[i * (k + 6) + 3..][..k].to_vec()).collect();
    for isa in Isa::available() {
        let rt = runtime(isa, 2);
        let packed = weight(&rt, &w, n, k, RowOrder::Plain);
        for dtype in DTYPES {
            let wide = activations(&x, t, k + 6, dtype);
            let mut out = Tensor::from_slice(&vec![9.0f32; t * (n + 5)], &[t, n + 5]).unwrap();
            let columns = wide.view().narrow(1, 3, k).unwrap();
            let into = out.view_mut().narrow(1, 2, n).unwrap();
            linear(&rt, columns, &packed, None, Epilogue::Store, into).unwrap();
            let out = out.to_vec_f32().unwrap();
            let want = expected(isa, &dense, &w, None, (t, k, n), dtype);
            for i in 0..t {
                let row = &out[i * (n + 5)..][..n + 5];
                let what = format!("{dtype} on {isa}, row {i} of a strided x");
                assert_same_bits(&row[2..n + 2], &want[i * n..][..n], &[n], &what);
                assert!([row[0], row[1], row[n + 2], row[n + 3], row[n + 4]] == [9.0; 5]);
            }
        }
    }
}

#[test]
fn a_fused_epilogue_gives_the_bits_of_the_op_it_stands_for() {
    for (t, k, n) in [(1, 24, 64), (3, 17, 34), (13, 40, 98), (150, 8, 62)] {
        // Gates from far below zero to far above, where the exponential has to work.
        let x: Vec<f32> = numbers(t as u64, t * k).iter().map(|v| v * 12.0).collect();
        let (w, bias) = (numbers(5, n * k), numbers(6, n));
        let bias = Tensor::from_slice(&bias, &[n]).unwrap();
        for isa in Isa::available() {
            let rt = runtime(isa, 2);
            let w = weight(&rt, &w, n, k, RowOrder::GateUp);
            for dtype in DTYPES {
                let x = activations(&x, t, k, dtype);
                let run = |epilogue, out: &mut Tensor| {
                    let bias = Some(bias.view());
                    linear(&rt, x.view(), &w, bias, epilogue, out.view_mut()).unwrap();
                };
                let mut both = zeros(t, n, DType::F32);
                run(Epilogue::Store, &mut both);
                let gate = both.view().narrow(1, 0, n / 2).unwrap();
                let up = both.view().narrow(1, n / 2, n / 2).unwrap();
                for out_dtype in DTYPES {
                    let mut fused = zeros(t, n / 2, out_dtype);
                    let mut apart = zeros(t, n / 2, out_dtype);
                    let what = format!("{isa} {dtype} -> {out_dtype}, T {t} K {k} N {n}");
                    run(Epilogue::SiluMul, &mut fused);
                    silu_mul(&rt, gate, up, apart.view_mut()).unwrap();
                    assert_eq!(bits(&fused), bits(&apart), "silu, {what}");
                    run(Epilogue::GeluTanhMul, &mut fused);
                    gelu_mul(&rt, Gelu::Tanh, gate, up, apart.view_mut()).unwrap();
                    assert_eq!(bits(&fused), bits(&apart), "gelu tanh, {what}");
                    run(Epilogue::GeluMul, &mut fused);
                    gelu_mul(&rt, Gelu::Erf, gate, up, apart.view_mut()).unwrap();
                    assert_eq!(bits(&fused), bits(&apart), "gelu erf, {what}");
                }
            }
        }
    }
}

#[test]
fn store_writes_gate_up_rows_in_their_logical_order() {
    let (t, k, n) = (2, 9, 46);
    let (x, w) = (numbers(1, t * k), numbers(2, n * k));
    for isa in Isa::available() {
        let rt = runtime(isa, 1);
        let packed = weight(&rt, &w, n, k, RowOrder::GateUp);
        let mut out = zeros(t, n, DType::F32);
        let input = activations(&x, t, k, DType::F32);
        linear(&rt, input.view(), &packed, None, Epilogue::Store, out.view_mut()).unwrap();
        let want = expected(isa, &x, &w, None, (t, k, n), DType::F32);
        let what = format!("gate-up rows on {isa}, x [{t}, {k}]");
        assert_same_bits(&out.to_vec_f32().unwrap(), &want, &[t, n], &what);
    }
}

#[test]
fn add_is_one_addition_to_what_was_there_and_a_bf16_output_is_rounded_once() {
    let (t, k, n) = (14, 30, 45);
    let (x, w, old) = (numbers(1, t * k), numbers(2, n * k), numbers(3, t * n));
    for isa in Isa::available() {
        let rt = runtime(isa, 2);
        let packed = weight(&rt, &w, n, k, RowOrder::Plain);
        for dtype in DTYPES {
            let y = expected(isa, &x, &w, None, (t, k, n), dtype);
            let input = activations(&x, t, k, dtype);
            let mut out = Tensor::from_slice(&old, &[t, n]).unwrap();
            linear(&rt, input.view(), &packed, None, Epilogue::Add, out.view_mut()).unwrap();
            let want: Vec<f32> = old.iter().zip(&y).map(|(a, b)| a + b).collect();
            let what = format!("{dtype} on {isa}, added to what was there, x [{t}, {k}]");
            assert_same_bits(&out.to_vec_f32().unwrap(), &want, &[t, n], &what);

            let mut out = zeros(t, n, DType::BF16);
            linear(&rt, input.view(), &packed, None, Epilogue::Store, out.view_mut()).unwrap();
            let what = format!("{dtype} on {isa}, into bf16, x [{t}, {k}]");
            assert_same_bits(&out.to_vec_f32().unwrap(), &rounded(&y), &[t, n], &what);
        }
    }
}

#[test]
fn the_low_rank_side_term_is_two_matmuls_and_a_scaled_addition() {
    let (t, k, r, n) = (9, 50, 8, 70);
    let (x, a, b) = (numbers(1, t * k), numbers(2, r * k), numbers(3, n * r));
    let old = numbers(4, t * n);
    for isa in Isa::available() {
        let rt = runtime(isa, 2);
        let side = LowRank {
            a: weight(&rt, &a, r, k, RowOrder::Plain),
            b: weight(&rt, &b, n, r, RowOrder::Plain),
            // No power of two: the product is rounded, and then the sum.
            scale: 0.3,
        };
        for dtype in DTYPES {
            let mut down = expected(isa, &x, &a, None, (t, k, r), dtype);
            if dtype == DType::BF16 {
                down = rounded(&down);
            }
            let up = expected(isa, &down, &b, None, (t, r, n), dtype);
            let want: Vec<f32> = old.iter().zip(&up).map(|(o, y)| o + 0.3 * y).collect();
            let mut scratch = zeros(t, r, dtype);
            let mut out = Tensor::from_slice(&old, &[t, n]).unwrap();
            let input = activations(&x, t, k, dtype);
            linear_low_rank(&rt, input.view(), &side, scratch.view_mut(), out.view_mut()).unwrap();
            let what = format!("low rank, {dtype} on {isa}, x [{t}, {k}], rank {r}");
            assert_same_bits(&out.to_vec_f32().unwrap(), &want, &[t, n], &what);
        }
    }
}

#[test]
fn what_does_not_fit_is_named_with_both_layouts() {
    let rt = runtime(Isa::best(), 1);
    let w = weight(&rt, &numbers(1, 6 * 4), 6, 4, RowOrder::Plain);
    let folded = weight(&rt, &numbers(1, 6 * 4), 6, 4, RowOrder::GateUp);
    let call = |x: &[usize], xd, w, e, o: &[usize], od| {
        let x = Tensor::zeros(x, xd, rt.device()).unwrap();
        let mut out = Tensor::zeros(o, od, rt.device()).unwrap();
        linear(&rt, x.view(), w, None, e, out.view_mut())
    };
    let (f, b) = (DType::F32, DType::BF16);
    let message = |r: Result<(), Error>| r.unwrap_err().to_string();

    let m = message(call(&[2, 5], f, &w, Epilogue::Store, &[2, 6], f));
    assert!(m.contains("linear") && m.contains("[2, 5]") && m.contains("[6, 4]"), "{m}");
    let m = message(call(&[2, 4], f, &w, Epilogue::Store, &[2, 7], f));
    assert!(m.contains("linear") && m.contains("[2, 7]") && m.contains("[6, 4]"), "{m}");
    let m = message(call(&[2, 4], f, &w, Epilogue::Store, &[3, 6], f));
    assert!(m.contains("[2, 4]") && m.contains("[3, 6]"), "{m}");
    let m = message(call(&[2, 4], f, &folded, Epilogue::SiluMul, &[2, 6], f));
    assert!(m.contains("gate") && m.contains("[2, 6]") && m.contains("[6, 4]"), "{m}");
    let m = message(call(&[2, 4], f, &w, Epilogue::SiluMul, &[2, 3], f));
    assert!(m.contains("RowOrder::GateUp"), "{m}");
    let m = message(call(&[2, 4], DType::I32, &w, Epilogue::Store, &[2, 6], f));
    assert!(m.contains("I32"), "{m}");
    let m = message(call(&[2, 4], f, &w, Epilogue::Add, &[2, 6], b));
    assert!(m.contains("BF16") && m.contains("add"), "{m}");

    let x = Tensor::zeros(&[2, 4], f, rt.device()).unwrap();
    let mut out = zeros(2, 6, f);
    let bias = Tensor::zeros(&[5], f, rt.device()).unwrap();
    let bias = Some(bias.view());
    let m = message(linear(&rt, x.view(), &w, bias, Epilogue::Store, out.view_mut()));
    assert!(m.contains("bias") && m.contains("[5]") && m.contains("[6, 4]"), "{m}");
    let turned = Tensor::zeros(&[4, 2], f, rt.device()).unwrap();
    let turned = turned.view().transpose(0, 1).unwrap();
    let m = message(linear(&rt, turned, &w, None, Epilogue::Store, out.view_mut()));
    assert!(m.contains("rows") && m.contains("strides"), "{m}");
}
