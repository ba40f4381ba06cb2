use super::*;
use crate::cpu::Isa;

dispatch! {
    fn exp_all<const FMA: bool>(x: &[f32], out: &mut [f32]) {
        for (o, v) in out.iter_mut().zip(x) {
            *o = exp::<FMA>(*v);
        }
    }
    fn sum_all<const FMA: bool>(x: &[f32]) -> (f32, f32) {
        (sum(x), sum_squares::<FMA>(x))
    }
    fn max_all<const FMA: bool>(x: &[f32]) -> f32 {
        max_of(x)
    }
    fn round_all<const FMA: bool>(x: &[f32], out: &mut [bf16]) {
        for (o, v) in out.iter_mut().zip(x) {
            *o = round_bf16(*v);
        }
    }
}

/// Panic unless both are the same number to the last bit; show them as numbers, and their bits.
#[track_caller]
fn assert_same_bits(what: impl std::fmt::Display, got: f32, want: f32) {
    let (g, w) = (got.to_bits(), want.to_bits());
    assert!(
        g == w,
        "{what}\n  expected  {want:?} (bits {w:#010x})\n  got       {got:?} (bits {g:#010x})"
    );
}

/// A distance to read at a glance: an exponential that is all wrong is off by 10^77 units.
fn short(distance: f64) -> String {
    if distance < 1e6 { format!("{distance:.2}") } else { format!("{distance:.2e}") }
}

/// Distance from the true value in units of the result's last place.
fn ulps(got: f32, exact: f64) -> f64 {
    let nearest = (exact as f32).abs();
    let ulp = f64::from(f32::from_bits(nearest.to_bits() + 1)) - f64::from(nearest);
    (f64::from(got) - exact).abs() / ulp
}

#[test]
fn exp_is_within_two_ulp_over_the_whole_range() {
    let x: Vec<f32> = (0..400_000).map(|i| -104.5 + 193.2 * (i as f32 / 400_000.0)).collect();
    let mut out = vec![0.0; x.len()];
    for isa in Isa::available() {
        exp_all(isa, &x, &mut out);
        let bound = if isa == Isa::Portable && !PORTABLE_FMA { 2.0 } else { 1.5 };
        for (v, got) in x.iter().zip(&out) {
            let exact = f64::from(*v).exp();
            if exact > f64::from(f32::MAX) {
                continue;
            }
            let error = ulps(*got, exact);
            assert!(
                error <= bound,
                "exp on {isa}, x = {v:?}: off by {} units in the last place\n  \
                 expected  {:?}\n  got       {got:?}\n  allowed   {bound} units",
                short(error),
                exact as f32,
            );
        }
    }
}

#[test]
fn exp_keeps_its_exact_identities() {
    let x = [0.0, -0.0, f32::NEG_INFINITY, f32::INFINITY, f32::NAN, -f32::MAX, f32::MAX, 88.73];
    for isa in Isa::available() {
        let mut out = [7.0; 8];
        exp_all(isa, &x, &mut out);
        assert_eq!(out[..4], [1.0, 1.0, 0.0, f32::INFINITY], "exp of {:?} on {isa}", &x[..4]);
        assert!(out[4].is_nan(), "exp of NaN on {isa}: {}", out[4]);
        let far = [0.0, f32::INFINITY, f32::INFINITY];
        assert_eq!(out[5..], far, "exp of {:?} on {isa}", &x[5..]);
    }
}

#[test]
fn sums_have_the_same_bits_on_every_fused_instruction_set() {
    // Numbers with all bits in use and of many sizes, so that another order has other last bits.
    let number = |i: u32| {
        let bits = i.wrapping_mul(0x9e37_79b1) ^ 0x5bd1_e995;
        ((bits >> 8) as f32 / 8_388_608.0 - 1.0) * [1.0, 30.0, 0.1][i as usize % 3]
    };
    let x: Vec<f32> = (0..1003).map(number).collect();
    for n in (0..100).chain([1003]) {
        let by_hand = |f: &dyn Fn(f32, f32) -> f32| {
            let mut lanes = [0.0f32; 16];
            for (i, v) in x[..n].iter().enumerate() {
                lanes[i % 16] = f(lanes[i % 16], *v);
            }
            for half in [8, 4, 2, 1] {
                for i in 0..half {
                    lanes[i] += lanes[i + half];
                }
            }
            lanes[0]
        };
        for isa in Isa::available() {
            let (s, q) = sum_all(isa, &x[..n]);
            let (want_s, want_q) = (by_hand(&|a, v| a + v), by_hand(&|a, v| v.mul_add(v, a)));
            assert_same_bits(format_args!("sum of {n} on {isa}"), s, want_s);
            if isa != Isa::Portable || PORTABLE_FMA {
                assert_same_bits(format_args!("sum of {n} squares on {isa}"), q, want_q);
            } else {
                assert!(
                    (q - want_q).abs() <= want_q * 1e-5,
                    "sum of {n} squares on {isa}\n  expected  {want_q:?}\n  got       {q:?}"
                );
            }
        }
    }
}

#[test]
fn bf16_rounding_is_to_nearest_even_and_keeps_nan() {
    let mut x: Vec<f32> =
        (0..1u32 << 16).map(|i| f32::from_bits(i.wrapping_mul(0x9e37_79b1))).collect();
    x.extend((0..1u32 << 16).flat_map(|i| [i << 16, i << 16 | 0x8000].map(f32::from_bits)));
    x.extend([f32::NAN, f32::from_bits(0x7f80_0001), f32::from_bits(0xff80_0001), f32::MAX]);
    for isa in Isa::available() {
        let mut out = vec![bf16::ZERO; x.len()];
        round_all(isa, &x, &mut out);
        for (v, got) in x.iter().zip(&out) {
            let want = bf16::from_f32(*v);
            let (g, w) = (got.to_bits(), want.to_bits());
            assert!(
                g == w,
                "{v:?} (bits {:#010x}) as bf16 on {isa}\n  expected  {want:?} (bits {w:#06x})\n  \
                 got       {got:?} (bits {g:#06x})",
                v.to_bits(),
            );
        }
    }
}

#[test]
fn halves_go_to_the_even_neighbour() {
    let half = 1.0 / 256.0; // Of the step between neighbours of 1.
    let cases =
        [(1.0 + half, 1.0), (1.0 + 3.0 * half, 1.015625), (-1.0 - half, -1.0), (257.0, 256.0)];
    for (v, want) in cases {
        assert_eq!(round_bf16(v).to_f32(), want, "{v}, half-way between two bf16");
    }
}

#[test]
fn widening_bf16_is_exact() {
    for bits in 0..=u16::MAX {
        let v = bf16::from_bits(bits);
        let want = f32::from_bits(u32::from(bits) << 16);
        assert_same_bits(format_args!("the bf16 {bits:#06x} as f32"), v.widen(), want);
    }
}

#[test]
fn the_largest_element_is_found_in_any_lane_and_nan_is_passed_over() {
    for isa in Isa::available() {
        for n in [1, 2, 15, 16, 17, 31, 33, 70] {
            for at in 0..n {
                let mut x: Vec<f32> = (0..n).map(|i| -3.0 - i as f32).collect();
                x[at] = -1.0;
                assert_eq!(max_all(isa, &x), -1.0, "largest of {n}, at {at}, on {isa}");
                x[(at + 1) % n] = if n > 1 { f32::NAN } else { -1.0 };
                assert_eq!(
                    max_all(isa, &x),
                    -1.0,
                    "largest of {n} beside a NaN, at {at}, on {isa}"
                );
            }
        }
        assert_eq!(max_all(isa, &[]), f32::NEG_INFINITY, "largest of nothing on {isa}");
        assert_eq!(max_all(isa, &[f32::NAN; 40]), f32::NEG_INFINITY, "largest of NaNs on {isa}");
    }
}
