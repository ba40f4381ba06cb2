//! Rounding a matrix to NVFP4.
//!
//! ```text
//! global = 2688 / amax(matrix)                   2688 = 448 * 6, the largest scale times the largest code
//! scale  = e4m3(global * amax(16 inputs) / 6)
//! code   = e2m1(w * global / scale)
//! ```
//!
//! So the largest weight of all is a code of 6 with a scale of 448, and scales use the range of E4M3. The nearest code
//! is taken; of two that are equally near the one whose last bit is zero. Source: `calculate_qparams` and
//! `generate_gparam` of compressed-tensors.

use l1_tensor::e4m3;

use crate::checkpoint::nvfp4::GROUP;

/// The largest magnitude that a code and a scale stand for together.
const LARGEST: f32 = e4m3::MAX * MAX_CODE;

/// The largest magnitude of E2M1.
const MAX_CODE: f32 = 6.0;

/// Code of the smallest scale, 2^-9. A zero would lose the codes of its group, and some readers divide by it.
const SMALLEST_SCALE: u8 = 1;

/// Global scale, in the sense of compressed-tensors, of matrices whose largest magnitude is `amax`. Zeros have 1.
pub(super) fn global_scale(amax: f32) -> f32 {
    let global = LARGEST / amax;
    // Neither it nor the factor, its reciprocal, may be infinite, zero or subnormal.
    if global.is_normal() && (1.0 / global).is_normal() { global } else { 1.0 }
}

/// Largest magnitude; NaN if there is one, infinity included as it is.
pub(super) fn amax(values: &[f32]) -> f32 {
    values.iter().fold(0.0, |max, x| if x.abs() > max || x.is_nan() { x.abs() } else { max })
}

/// Rounds a row of whole groups: `codes` has a byte for two weights, `scales` one for sixteen.
pub(super) fn quantize_row(row: &[f32], global: f32, codes: &mut [u8], scales: &mut [u8]) {
    let groups = row.chunks_exact(GROUP).zip(codes.chunks_exact_mut(GROUP / 2)).zip(scales);
    for ((group, codes), scale) in groups {
        *scale = e4m3::from_f32(global * (amax(group) / MAX_CODE)).max(SMALLEST_SCALE);
        let unit = f64::from(e4m3::to_f32(*scale)) / f64::from(global);
        for (pair, both) in group.chunks_exact(2).zip(codes) {
            *both =
                e2m1_code(f64::from(pair[0]) / unit) | e2m1_code(f64::from(pair[1]) / unit) << 4;
        }
    }
}

/// The nearest E2M1 code: the number of boundaries below a magnitude. On a boundary the even code is taken, so a
/// boundary above an even code belongs to the code below it.
fn e2m1_code(x: f64) -> u8 {
    const BOUNDARIES: [f64; 7] = [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0];
    let magnitude = x.abs();
    let below = |(code, boundary): (usize, &f64)| match code % 2 {
        0 => magnitude > *boundary,
        _ => magnitude >= *boundary,
    };
    let code = BOUNDARIES.iter().enumerate().filter(|b| below(*b)).count() as u8;
    code | u8::from(x.is_sign_negative()) << 3
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::quant::e2m1;

    #[test]
    fn every_number_gets_its_nearest_code() {
        for i in -7000..=7000 {
            let x = f64::from(i) / 1000.0;
            let distance = |code: u8| (f64::from(e2m1(code)) - x).abs();
            let got = e2m1_code(x);
            let best = (0..16).map(distance).fold(f64::INFINITY, f64::min);
            assert_eq!(distance(got), best, "code {got} for {x}");
        }
    }

    #[test]
    fn ties_go_to_the_even_code() {
        for (x, value) in
            [(0.25, 0.0), (0.75, 1.0), (1.25, 1.0), (1.75, 2.0), (2.5, 2.0), (3.5, 4.0), (5.0, 4.0)]
        {
            assert_eq!(e2m1(e2m1_code(x)), value, "{x}");
            assert_eq!(e2m1(e2m1_code(-x)), -value, "-{x}");
        }
        assert_eq!(e2m1(e2m1_code(100.0)), 6.0);
    }

    #[test]
    fn the_largest_weight_has_the_largest_code_and_scale() {
        let row: Vec<f32> = (0..32).map(|i| (i as f32 - 20.0) * 0.01).collect();
        let global = global_scale(amax(&row));
        let (mut codes, mut scales) = ([0; 16], [0; 2]);
        quantize_row(&row, global, &mut codes, &mut scales);
        assert_eq!(e4m3::to_f32(scales[0]), 448.0);
        assert_eq!(e2m1(codes[0] & 15), -6.0, "-0.2 is the largest magnitude");
        for (i, x) in row.iter().enumerate() {
            let scale = e4m3::to_f32(scales[i / 16]);
            let got = e2m1(codes[i / 2] >> (i % 2 * 4) & 15) * scale / global;
            // Half of the widest step of a code.
            assert!((got - x).abs() <= scale / global, "weight {i}: {got} for {x}");
        }
    }

    #[test]
    fn zeros_and_extremes_have_usable_scales() {
        for amax in [0.0, 1e-45, 1e-38, f32::MAX] {
            let global = global_scale(amax);
            assert!(global.is_normal() && (1.0 / global).is_normal(), "{amax}: {global}");
            let (mut codes, mut scales) = ([9; 8], [9; 1]);
            quantize_row(&[amax; 16], global, &mut codes, &mut scales);
            assert!((1..=0x7e).contains(&scales[0]), "{amax}: {}", scales[0]);
        }
        let (mut codes, mut scales) = ([9; 8], [9; 1]);
        quantize_row(&[0.0; 16], 1.0, &mut codes, &mut scales);
        assert_eq!(codes, [0; 8]);
    }
}
