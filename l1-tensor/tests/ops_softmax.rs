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
    #![proptest_config(ProptestConfig::with_cases(48))]

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
            prop_assert_eq!(first_difference(&got, &want, relative, 1e-38), None, "{}", rt);
            let got = run(&rt, true, &xt).to_vec_f32().unwrap();
            prop_assert_eq!(first_difference(&got, &want_log, 2e-7, 1e-6), None, "log on {}", rt);
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
                prop_assert!(close(l.exp(), *w, 1e-5, 1e-37), "{} and {} on {}", w, l, rt);
            }
        }
    }
}

#[test]
fn softmax_agrees_with_torch() {
    let goldens = Goldens::open();
    for case in goldens.cases("softmax") {
        let want = goldens.tensor(&case, "out").to_vec_f32().unwrap();
        for rt in every_isa() {
            let got = run(&rt, false, &goldens.tensor(&case, "x")).to_vec_f32().unwrap();
            assert_eq!(first_difference(&got, &want, 1e-6, 1e-38), None, "{case} on {rt}");
        }
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
    for rt in every_isa() {
        let w = run(&rt, false, &x).to_vec_f32().unwrap();
        assert_eq!(w[..6], [0.0, 0.0, 0.0, 0.0, 1.0, 0.0], "{rt}");
        assert!(w[6..].iter().all(|v| v.is_nan()), "{rt}: {w:?}");
        let l = run(&rt, true, &x).to_vec_f32().unwrap();
        assert_eq!(l[..6], [-inf, -inf, -inf, -inf, 0.0, -inf], "{rt}");
        assert!(l[6..].iter().all(|v| v.is_nan()), "{rt}: {l:?}");
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
