use super::*;

/// A code by the words of the specification: (-1)^S * 2^(E - 7) * (1 + M/8), or 2^-6 * M/8 for E = 0.
fn by_the_book(code: u8) -> f64 {
    let (sign, e, m) = (code >> 7, i32::from(code >> 3 & 15), f64::from(code & 7));
    let magnitude = match (e, code & 7) {
        (15, 7) => f64::NAN,
        (0, _) => 2f64.powi(-6) * m / 8.0,
        _ => 2f64.powi(e - 7) * (1.0 + m / 8.0),
    };
    if sign == 1 { -magnitude } else { magnitude }
}

/// The nearest of all codes, ties to the even one, found by looking at each.
fn nearest(x: f32) -> u8 {
    let distance = |c: u8| (by_the_book(c) - f64::from(x.abs())).abs();
    let best =
        (0..0x7f).min_by(|a, b| distance(*a).total_cmp(&distance(*b)).then((a & 1).cmp(&(b & 1))));
    best.unwrap() | if x.is_sign_negative() { 0x80 } else { 0 }
}

#[test]
fn every_code_is_the_number_of_the_specification() {
    for code in 0..=255u8 {
        let (got, want) = (to_f32(code), by_the_book(code) as f32);
        let same = got.to_bits() == want.to_bits() || got.is_nan() && want.is_nan();
        assert!(same, "code {code:#04x}\n  expected  {want}\n  got       {got}");
    }
    // A few from the tables of the specification.
    for (code, number) in
        [(0x7e, 448.0), (0x08, 0.015625), (0x07, 0.013671875), (0x01, 0.001953125), (0x38, 1.0)]
    {
        assert_eq!(to_f32(code), number, "code {code:#04x}");
    }
    assert!(to_f32(0x7f).is_nan() && to_f32(0xff).is_nan());
}

#[test]
fn a_number_takes_the_nearest_code_and_a_tie_the_even_one() {
    for code in 0..0x7eu8 {
        let (low, high) = (by_the_book(code), by_the_book(code + 1));
        let middle = ((low + high) / 2.0) as f32;
        for x in [low as f32, middle, middle.next_down(), middle.next_up()] {
            for x in [x, -x] {
                let (got, want) = (from_f32(x), nearest(x));
                assert_eq!(got, want, "the code of {x:e}");
            }
        }
    }
    let mut x = 1e-5f32;
    while x < 600.0 {
        assert_eq!(from_f32(x), nearest(x), "the code of {x:e}");
        x *= 1.003;
    }
}

#[test]
fn what_is_too_large_becomes_the_largest_and_what_is_no_number_stays_none() {
    for (x, code) in [(449.0, 0x7e), (1e30, 0x7e), (f32::INFINITY, 0x7e), (f32::NAN, 0x7f)] {
        assert_eq!(from_f32(x), code, "the code of {x}");
        assert_eq!(from_f32(-x) & 0x7f, code, "the code of -{x}");
    }
    assert_eq!([from_f32(0.0), from_f32(-0.0), from_f32(1e-40)], [0, 0x80, 0]);
}

#[test]
fn a_code_times_any_scale_that_is_used_is_exact() {
    for scale in 10..=247u8 {
        let power = i16::from(scale) - 127;
        for code in (0..=255u8).filter(|c| power < 120 || c & 0x7f <= 0x77) {
            let want = by_the_book(code) * 2f64.powi(i32::from(power));
            let got = f32::from_bits(u32::from(to_bf16(code, power)) << 16);
            assert!(
                f64::from(got).to_bits() == want.to_bits() || code & 0x7f == 0x7f && got.is_nan(),
                "code {code:#04x} times 2^{power}\n  expected  {want:e}\n  got       {got:e}"
            );
        }
    }
}

#[test]
fn the_scale_is_the_smallest_that_fits_the_largest_magnitude() {
    for exponent in -149..128 {
        for mantissa in [1.0, 1.5, 1.75, 1.7500001, 1.875, 1.9999999f64] {
            let x = (2f64.powi(exponent) * mantissa) as f32;
            if !x.is_finite() {
                continue;
            }
            let scale = scale_of(&[x / 2.0, -x, 0.0]);
            let power = i32::from(scale) - 127;
            let (fits, half) = (448.0 * 2f64.powi(power), 448.0 * 2f64.powi(power - 1));
            assert!((-117..=120).contains(&power), "2^{power} for {x:e}");
            assert!(f64::from(x) <= fits, "2^{power} is too small for {x:e}");
            assert!(power == -117 || f64::from(x) > half, "2^{power} is too large for {x:e}");
            let code = scaled_code(x, scale);
            let stored = f32::from_bits(u32::from(to_bf16(code, power as i16)) << 16);
            let allowed = (f64::from(x) / 16.0).max(2f64.powi(power - 10));
            assert!((f64::from(stored) - f64::from(x)).abs() <= allowed, "{x:e} became {stored:e}");
        }
    }
    assert_eq!(scale_of(&[0.0, -0.0]), 10, "nothing but zeros");
    assert_eq!(
        scale_of(&[f32::NAN, 448.0, f32::INFINITY]),
        127,
        "what is not finite does not count"
    );
}
