//! Gated activations against their references, torch and themselves.

mod support;

use l1_tensor::ops::{Gelu, gelu_mul, gelu_mul_reference, silu_mul, silu_mul_reference};
use l1_tensor::{DType, Device, Error, Runtime, Tensor};
use proptest::prelude::*;
use support::*;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Silu,
    Gelu(Gelu),
}

const KINDS: [Kind; 3] = [Kind::Silu, Kind::Gelu(Gelu::Erf), Kind::Gelu(Gelu::Tanh)];

fn fast(rt: &Runtime, kind: Kind, gate: &Tensor, up: &Tensor, dtype: DType) -> Tensor {
    let mut out = Tensor::zeros(gate.dims(), dtype, Device::Cpu).unwrap();
    match kind {
        Kind::Silu => silu_mul(rt, gate.view(), up.view(), out.view_mut()),
        Kind::Gelu(g) => gelu_mul(rt, g, gate.view(), up.view(), out.view_mut()),
    }
    .unwrap();
    out
}

fn reference(kind: Kind, gate: &[f32], up: &[f32]) -> Vec<f32> {
    let mut out = vec![0.0; gate.len()];
    match kind {
        Kind::Silu => silu_mul_reference(gate, up, &mut out),
        Kind::Gelu(g) => gelu_mul_reference(g, gate, up, &mut out),
    }
    out
}

/// SiLU is an exponential and a division. The tanh form multiplies the rounding error of its cubic
/// by up to |u|; the distribution function is fitted to 5e-6.
fn tolerance(kind: Kind) -> f32 {
    match kind {
        Kind::Silu => 6e-7,
        Kind::Gelu(Gelu::Tanh) => 2e-5,
        Kind::Gelu(Gelu::Erf) => 8e-6,
    }
}

proptest! {
    #![proptest_config(random_cases(24))]

    #[test]
    fn activations_agree_with_their_references_on_every_instruction_set(
        rows in 0..3usize,
        width in prop_oneof![Just(0usize), Just(1), 2..70usize, Just(1536)],
        spread in prop_oneof![Just(1e-3f32), Just(1.0), Just(8.0)],
        seed: u64,
    ) {
        let gate: Vec<f32> = noise(rows * width, seed).iter().map(|v| v * spread).collect();
        let up = noise(rows * width, seed ^ 1);
        let gt = Tensor::from_slice(&gate, &[rows, width]).unwrap();
        let ut = Tensor::from_slice(&up, &[rows, width]).unwrap();
        for kind in KINDS {
            let want = reference(kind, &gate, &up);
            for rt in every_isa() {
                let got = fast(&rt, kind, &gt, &ut, DType::F32).to_vec_f32().unwrap();
                // The reference integrates to about 1e-13.
                let what = format!("{kind:?} on {}, gate [{rows}, {width}]", rt.isa());
                let allowed = within(tolerance(kind), 1e-12);
                let off = differences(what, &[rows, width], &got, &want, allowed);
                prop_assert!(off.is_none(), "{}", off.unwrap_or_default());
                let narrow = fast(&rt, kind, &gt, &ut, DType::BF16).to_vec_f32().unwrap();
                prop_assert_eq!(narrow, rounded(&got), "{:?} on {}", kind, rt);
            }
        }
    }
}

#[test]
fn activations_agree_with_torch() {
    let goldens = Goldens::open();
    let cases =
        [(KINDS[0], "silu_mul.rows"), (KINDS[1], "gelu_mul.erf"), (KINDS[2], "gelu_mul.tanh")];
    for (kind, case) in cases {
        let (gate, up) = (goldens.tensor(case, "gate"), goldens.tensor(case, "up"));
        let want = goldens.tensor(case, "out").to_vec_f32().unwrap();
        let what = |on: &str| format!("{kind:?}, {on}, {case} of torch, gate {:?}", gate.dims());
        // torch's own tails cancel: 1 + erf(x) at x = -6 holds few digits even in f64.
        let allowed = within(tolerance(kind), 1e-15);
        let got = reference(kind, &gate.to_vec_f32().unwrap(), &up.to_vec_f32().unwrap());
        // The reference integrates to about 1e-13.
        let near = within(tolerance(kind), 1e-12);
        assert_close(what("the reference"), gate.dims(), &got, &want, near);
        for rt in every_isa() {
            let got = fast(&rt, kind, &gate, &up, DType::F32).to_vec_f32().unwrap();
            assert_close(what(&format!("on {}", rt.isa())), gate.dims(), &got, &want, allowed);
        }
    }
}

#[test]
fn far_out_the_gate_is_open_or_shut_and_nan_stays() {
    let gate = [0.0, 1e30, -1e30, 200.0, -200.0, f32::INFINITY, f32::NAN, f32::NEG_INFINITY];
    let gt = Tensor::from_slice(&gate, &[8]).unwrap();
    let ut = Tensor::from_slice(&[1.0f32; 8], &[8]).unwrap();
    for rt in every_isa() {
        for kind in KINDS {
            let got = fast(&rt, kind, &gt, &ut, DType::F32).to_vec_f32().unwrap();
            let what = format!("{kind:?} on {}, gates {:?}, ups 1", rt.isa(), &gate[..6]);
            assert_eq!(got[..6], [0.0, 1e30, 0.0, 200.0, 0.0, f32::INFINITY], "{what}");
            assert!(got[6].is_nan(), "{kind:?} of NaN on {}: {}", rt.isa(), got[6]);
            assert!(got[7].is_nan(), "-inf times 0, as in torch: {kind:?} on {}", rt.isa());
        }
    }
}

#[test]
fn halves_of_a_packed_buffer_need_no_copy_and_batches_change_no_bits() {
    let (tokens, inner) = (37, 1000); // Enough elements that threads take part.
    let packed = Tensor::from_slice(&noise(tokens * 2 * inner, 1), &[tokens, 2 * inner]).unwrap();
    for isa in l1_tensor::cpu::Isa::available() {
        let run = |threads: usize, from: usize, n: usize| {
            let rows = packed.view().narrow(0, from, n).unwrap();
            let gate = rows.narrow(1, 0, inner).unwrap();
            let up = rows.narrow(1, inner, inner).unwrap();
            let mut out = Tensor::zeros(&[n, inner], DType::F32, Device::Cpu).unwrap();
            silu_mul(&runtime(isa, threads), gate, up, out.view_mut()).unwrap();
            bits(&out)
        };
        let alone: Vec<u32> = (0..tokens).flat_map(|t| run(1, t, 1)).collect();
        for threads in [1, 2, 3] {
            assert!(run(threads, 0, tokens) == alone, "{isa}, {threads} threads");
        }
    }
}

#[test]
fn shapes_that_differ_are_refused() {
    let rt = &every_isa()[0];
    let a = Tensor::zeros(&[2, 3], DType::F32, Device::Cpu).unwrap();
    let b = Tensor::zeros(&[3, 2], DType::F32, Device::Cpu).unwrap();
    let mut out = Tensor::zeros(&[2, 3], DType::F32, Device::Cpu).unwrap();
    let e = silu_mul(rt, a.view(), b.view(), out.view_mut()).unwrap_err();
    assert!(matches!(e, Error::ShapeMismatch { op: "silu_mul", .. }), "{e}");
    let e = gelu_mul(rt, Gelu::Erf, a.view(), b.view(), out.view_mut()).unwrap_err();
    assert!(matches!(e, Error::ShapeMismatch { op: "gelu_mul", .. }), "{e}");
}
