//! Softmax and log-softmax against their references, torch and themselves.

mod support;

use l1_tensor::ops::{log_softmax, log_softmax_reference, softmax, softmax_reference};
use l1_tensor::{DType, Device, Error, Runtime, Tensor};
use proptest::prelude::*;
use support::*;

fn run(rt: &Runtime, log: bool, x: &Tensor) -> Tensor {
    let mut out = Tensor::zeros(x.dims(), DType::F32, Device::Cpu).unwrap();
    match log {
        false => softmax(rt, x.view(), out.view_mut()),
        true => log_softmax(rt, x.view(), out.view_mut()),
    }
    .unwrap();
    out
}

/// Scores as they occur: some spread, and now and then a masked one.
fn scores(n: usize, seed: u64, spread: f32, masked: f32) -> Vec<f32> {
    let mask = noise(n, seed ^ 0xabcd);
    let score = |(v, m): (&f32, &f32)| {
        if (m + 1.0) / 2.0 < masked { f32::NEG_INFINITY } else { v * spread }
    };
    noise(n, seed).iter().zip(&mask).map(score).collect()
}

proptest! {
    #![proptest_config(random_cases(48))]

    #[test]
    fn softmax_agrees_with_its_reference_on_every_instruction_set(
        n in prop_oneof![Just(0usize), Just(1), 2..70usize, Just(2048), Just(49_152)],
        spread in prop_oneof![Just(0.1f32), Just(10.0), Just(1e4), Just(3e38)],
        masked in prop_oneof![Just(0.0f32), Just(0.5), Just(1.1)],
        seed: u64,
    ) {
        let x = scores(n, seed, spread, masked);
        let xt = Tensor::from_slice(&x, &[1, n]).unwrap();
        let (mut want, mut want_log) = (vec![0.0; n], vec![0.0; n]);
        softmax_reference(&x, &mut want);
        log_softmax_reference(&x, &mut want_log);
        for rt in every_isa() {
            let got = run(&rt, false, &xt).to_vec_f32().unwrap();
            // The reference adds up to 49,152 exponentials one after the other.
            let relative = 1e-6 + n as f32 * 1e-8;
            let what = |op: &str| format!("{op} on {}, x [1, {n}]", rt.isa());
            let off = differences(what("softmax"), &[1, n], &got, &want, within(relative, 1e-38));
            prop_assert!(off.is_none(), "{}", off.unwrap_or_default());
            let got = run(&rt, true, &xt).to_vec_f32().unwrap();
            let (what, allowed) = (what("log_softmax"), within(2e-7, 1e-6));
            let off = differences(what, &[1, n], &got, &want_log, allowed);
            prop_assert!(off.is_none(), "{}", off.unwrap_or_default());
        }
    }

    #[test]
    fn weights_are_a_distribution_and_logarithms_are_theirs(
        n in 1..3000usize,
        spread in 0.1..20.0f32,
        seed: u64,
    ) {
        let x = Tensor::from_slice(&scores(n, seed, spread, 0.2), &[n]).unwrap();
        for rt in every_isa() {
            let weights = run(&rt, false, &x).to_vec_f32().unwrap();
            let logs = run(&rt, true, &x).to_vec_f32().unwrap();
            let total: f64 = weights.iter().map(|w| f64::from(*w)).sum();
            prop_assert!(total == 0.0 || (total - 1.0).abs() < 1e-6, "{} on {}", total, rt);
            for (w, l) in weights.iter().zip(&logs) {
                prop_assert!(within(1e-5, 1e-37).accepts(l.exp(), *w), "{} and {} on {}", w, l, rt);
            }
        }
    }
}

/// What an op makes of rows, by its reference and on every instruction set, with what ran in words.
fn every_way(log: bool, x: &Tensor) -> Vec<(String, Vec<f32>)> {
    let op = if log { "log_softmax" } else { "softmax" };
    let (data, n) = (x.to_vec_f32().unwrap(), *x.dims().last().unwrap());
    let mut out = vec![0.0; data.len()];
    for (x, out) in data.chunks(n).zip(out.chunks_mut(n)) {
        if log { log_softmax_reference(x, out) } else { softmax_reference(x, out) }
    }
    let mut all = vec![(format!("{op}, the reference"), out)];
    for rt in every_isa() {
        let got = run(&rt, log, x).to_vec_f32().unwrap();
        all.push((format!("{op} on {}", rt.isa()), got));
    }
    all
}

#[test]
fn softmax_agrees_with_torch() {
    let goldens = Goldens::open();
    for case in goldens.cases("softmax") {
        let (x, want) = (goldens.tensor(&case, "x"), goldens.tensor(&case, "out"));
        let want = want.to_vec_f32().unwrap();
        for (ran, got) in every_way(false, &x) {
            let what = format!("{ran}, {case} of torch, x {:?}", x.dims());
            assert_close(what, x.dims(), &got, &want, within(1e-6, 1e-38));
        }
    }
}

#[test]
fn log_softmax_is_the_logarithm_of_torchs_softmax() {
    let goldens = Goldens::open();
    for case in goldens.cases("softmax") {
        let (x, weights) = (goldens.tensor(&case, "x"), goldens.tensor(&case, "out"));
        let weights = weights.to_vec_f32().unwrap();
        for (ran, got) in every_way(true, &x) {
            // Where a weight has digits left, its logarithm has them too.
            let seen = |i: &usize| weights[*i] > 1e-30 || weights[*i] == 0.0;
            let seen: Vec<usize> = (0..got.len()).filter(seen).collect();
            let got: Vec<f32> = seen.iter().map(|i| got[*i]).collect();
            let want: Vec<f32> = seen.iter().map(|i| f64::from(weights[*i]).ln() as f32).collect();
            let what = format!("{ran}, {case} of torch, x {:?}", x.dims());
            assert_close(what, &[got.len()], &got, &want, within(1e-6, 1e-6));
        }
    }
}

#[test]
fn logarithms_go_where_no_weight_can_be_written_down() {
    // e^-200 is 0 in f32, and the logarithm of that would be -inf.
    let half = -(2f32.ln());
    for (x, want) in [
        (&[0.0, -200.0][..], &[0.0, -200.0][..]),
        (&[1000.0, 1000.0, -9000.0], &[half, half, -10_000.0 + half]),
        (&[-5.0; 64], &[-(64f32.ln()); 64]),
        // Beside 3e38 a logarithm is nothing, in f64 too: the maximum has to go first.
        (&[3e38, 3e38, 1e38], &[half, half, -2e38]),
    ] {
        let t = Tensor::from_slice(x, &[x.len()]).unwrap();
        for (ran, got) in every_way(true, &t) {
            let what = format!("{ran}, {:?}, ..", &x[..2]);
            assert_close(what, &[x.len()], &got, want, within(2e-7, 1e-7));
        }
    }
    // 1 + e^-20 is 1 in f32, and ln(1 + e^-20) is e^-20.
    let t = Tensor::from_slice(&[0.0f32, -20.0], &[2]).unwrap();
    let want = [-(-20f64).exp() as f32, -20.0];
    for (ran, got) in every_way(true, &t) {
        let what = format!("{ran}, [0, -20], an element that is nearly certain");
        assert_close(what, &[2], &got, &want, within(1e-6, 0.0));
    }
}

#[test]
fn large_scores_do_not_overflow() {
    let t = Tensor::from_slice(&[1000.0f32, 1000.0, -1000.0, 999.0], &[4]).unwrap();
    let e = 1f32.exp();
    let want = [e / (2.0 * e + 1.0), e / (2.0 * e + 1.0), 0.0, 1.0 / (2.0 * e + 1.0)];
    for (ran, got) in every_way(false, &t) {
        let what = format!("{ran}, [1000, 1000, -1000, 999]");
        assert_close(what, &[4], &got, &want, within(1e-6, 0.0));
    }
}

#[test]
fn a_row_with_nothing_to_see_is_zero_and_nan_takes_its_row_only() {
    let inf = f32::INFINITY;
    let x = [
        [-inf; 3],
        [-inf, 2.0, -inf],
        [1.0, f32::NAN, 1.0],
        [-inf, f32::NAN, -inf],
        [inf, 0.0, 0.0],
    ];
    let x = Tensor::from_slice(&x.concat(), &[5, 3]).unwrap();
    for (ran, w) in every_way(false, &x) {
        assert_eq!(w[..6], [0.0, 0.0, 0.0, 0.0, 1.0, 0.0], "{ran}, rows of -inf, and 2 among -inf");
        assert!(w[6..].iter().all(|v| v.is_nan()), "{ran}, rows with NaN or inf: {:?}", &w[6..]);
    }
    for (ran, l) in every_way(true, &x) {
        let want = [-inf, -inf, -inf, -inf, 0.0, -inf];
        assert_eq!(l[..6], want, "{ran}, rows of -inf, and 2 among -inf");
        assert!(l[6..].iter().all(|v| v.is_nan()), "{ran}, rows with NaN or inf: {:?}", &l[6..]);
    }
}

#[test]
fn a_row_alone_has_the_bits_it_has_in_a_batch_on_any_number_of_threads() {
    let (rows, n) = (51, 1003);
    let x = noise(rows * n, 7);
    for isa in l1_tensor::cpu::Isa::available() {
        for log in [false, true] {
            let go = |threads: usize, from: usize, count: usize| {
                let x = Tensor::from_slice(&x[from * n..][..count * n], &[count, n]).unwrap();
                bits(&run(&runtime(isa, threads), log, &x))
            };
            let alone: Vec<u32> = (0..rows).flat_map(|i| go(1, i, 1)).collect();
            for threads in [1, 2, 3] {
                assert!(go(threads, 0, rows) == alone, "{isa}, {threads} threads, log: {log}");
            }
        }
    }
}

#[test]
fn shapes_that_differ_are_refused() {
    let rt = &every_isa()[0];
    let x = Tensor::zeros(&[2, 3], DType::F32, Device::Cpu).unwrap();
    let mut out = Tensor::zeros(&[2, 4], DType::F32, Device::Cpu).unwrap();
    let e = softmax(rt, x.view(), out.view_mut()).unwrap_err();
    assert!(matches!(e, Error::ShapeMismatch { op: "softmax", .. }), "{e}");
    let e = log_softmax(rt, x.view(), out.view_mut()).unwrap_err();
    assert!(matches!(e, Error::ShapeMismatch { op: "log_softmax", .. }), "{e}");
}
