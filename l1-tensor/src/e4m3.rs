//! E4M3, a number in eight bits: sign, four bits of exponent (bias 7), three of mantissa.
//!
//! The format is the one of the OCP 8-bit floating point specification (Micikevicius et al., *FP8
//! Formats for Deep Learning*, 2022). It has no infinity; of the codes with all exponent bits set only
//! the last, `S.1111.111`, is NaN. So the largest number is `1.75 * 2^8 = 448`, the smallest normal
//! one `2^-6`, the smallest of all `2^-9`.

/// The largest number.
pub const MAX: f32 = 448.0;

/// The number that a code stands for. Exact; in bf16 as well.
#[inline(always)]
pub fn to_f32(code: u8) -> f32 {
    f32::from_bits(u32::from(to_bf16(code, 0)) << 16)
}

/// Bits of the bf16 that is `2^power` times the number of a code. Exact as long as the result is a
/// normal number: for `-117 <= power <= 119`, and for the codes up to 240 at 120.
///
/// Whole numbers only, no multiplication: a loop over this is a loop of short integer vectors.
#[inline(always)]
pub(crate) fn to_bf16(code: u8, power: i16) -> u16 {
    let magnitude = u16::from(code & 0x7f);
    // Both formats are exponent before mantissa, so shifting a code to where the bf16's three upper
    // mantissa bits end moves both parts; the rest is the difference of the biases, 127 - 7.
    let normal = (magnitude << 4) + (120 << 7);
    // The eight codes below have no implied leading 1: m * 2^-9, whose leading 1 must be found.
    let small = if magnitude >= 4 {
        (120 << 7) + (magnitude.wrapping_sub(4) << 5)
    } else if magnitude >= 2 {
        (119 << 7) + (magnitude.wrapping_sub(2) << 6)
    } else {
        118 << 7
    };
    let number = if magnitude >= 8 { normal } else { small };
    let scaled = number.wrapping_add((power << 7) as u16);
    let value = match magnitude {
        0 => 0,
        0x7f => 0x7fc0,
        _ => scaled,
    };
    value | u16::from(code & 0x80) << 8
}

/// The nearest code, ties to even; beyond 448, infinities included, the largest number. NaN is NaN.
#[inline(always)]
pub fn from_f32(x: f32) -> u8 {
    let bits = x.to_bits() & 0x7fff_ffff;
    // Normal numbers: round off the 20 lower bits of the mantissa, carries go up by themselves, and
    // the biases differ by 120.
    let rounded = bits.wrapping_add(0x7_ffff + (bits >> 20 & 1)) >> 20;
    let normal = rounded.wrapping_sub(120 << 3);
    // Below 2^-6 codes are 2^-9 apart. So are the f32 from 2^14 on: adding it rounds to a multiple,
    // whose number then stands in the lowest bits.
    const APART: f32 = 16384.0;
    let small = (f32::from_bits(bits) + APART).to_bits().wrapping_sub(APART.to_bits());
    let magnitude = if bits < 0x3c80_0000 { small } else { normal };
    let magnitude = if bits > 0x43e0_0000 { 0x7e } else { magnitude };
    let magnitude = if bits > 0x7f80_0000 { 0x7f } else { magnitude };
    (x.to_bits() >> 24 & 0x80) as u8 | magnitude as u8
}

/// The exponent, biased by 127, of the smallest power of two that brings all of `row` to at most
/// 448, as an OCP microscaling format (E8M0) keeps it.
///
/// It is at least `2^-117`, so that codes times scale are normal numbers in f32 and bf16. What is not
/// finite does not count. The largest f32 need `2^120`, of whose codes only those up to 240 are
/// finite products: [`scaled_code`] uses no others.
#[inline(always)]
pub(crate) fn scale_of(row: &[f32]) -> u8 {
    let magnitude = |x: f32| x.to_bits() & 0x7fff_ffff;
    let mut largest = 0;
    for x in row {
        let bits = magnitude(*x);
        let finite = if bits < 0x7f80_0000 { bits } else { 0 };
        largest = if finite > largest { finite } else { largest };
    }
    let largest = largest.min(LARGEST.to_bits());
    // 448 is 1.75 * 2^8: eight binary places are won, one less for a mantissa beyond 1.75.
    let beyond = u32::from(largest & 0x7f_ffff > 0x60_0000);
    ((largest >> 23) + beyond).saturating_sub(8).max(127 - 117) as u8
}

/// The code of `x / 2^(scale - 127)`.
#[inline(always)]
pub(crate) fn scaled_code(x: f32, scale: u8) -> u8 {
    let inverse = f32::from_bits((254 - u32::from(scale)) << 23);
    let x = if x > LARGEST { LARGEST } else { x };
    let x = if x < -LARGEST { -LARGEST } else { x };
    from_f32(x * inverse)
}

/// `240 * 2^120`: f32 goes on to nearly 2^128, but from halfway the nearest code would be 2^128.
const LARGEST: f32 = f32::from_bits(0x7f70_0000);

#[cfg(test)]
mod tests;
