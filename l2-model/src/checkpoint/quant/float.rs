//! The plain formats: one number each, no blocks.
//!
//! The conversions work on the bits, without branches, so that the compiler vectorises the loops on
//! every machine. (`half` converts with the CPU's own instruction, but checks for its presence at
//! every number.)

use half::bf16;
pub use l1_tensor::cpu::lanes::f16_to_f32;

/// Single precision to bfloat16, to nearest, ties to even; a NaN stays a (quiet) NaN.
///
/// bf16 is the upper half of an f32. Adding just under half a unit of the kept part, plus the
/// kept part's lowest bit, carries exactly when rounding up is due.
#[inline(always)]
pub fn f32_to_bf16(x: f32) -> bf16 {
    let bits = x.to_bits();
    let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16;
    let quiet_nan = (bits >> 16) | 0x40;
    let is_nan = bits & 0x7fff_ffff > 0x7f80_0000;
    bf16::from_bits(if is_nan { quiet_nan } else { rounded } as u16)
}

pub(super) fn f32(bytes: &[u8], out: &mut [f32]) {
    for (o, b) in out.iter_mut().zip(bytes.as_chunks::<4>().0) {
        *o = f32::from_le_bytes(*b);
    }
}

pub(super) fn f16(bytes: &[u8], out: &mut [f32]) {
    for (o, b) in out.iter_mut().zip(bytes.as_chunks::<2>().0) {
        *o = f16_to_f32(u16::from_le_bytes(*b));
    }
}

pub(super) fn bf16(bytes: &[u8], out: &mut [f32]) {
    for (o, b) in out.iter_mut().zip(bytes.as_chunks::<2>().0) {
        *o = f32::from_bits(u32::from(u16::from_le_bytes(*b)) << 16);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use half::f16;

    #[test]
    fn every_half_precision_number_converts_exactly() {
        for bits in 0..=u16::MAX {
            let want = f16::from_bits(bits).to_f32();
            let got = f16_to_f32(bits);
            assert_eq!(want.is_nan(), got.is_nan(), "{bits:#06x}");
            if !want.is_nan() {
                assert_eq!(want.to_bits(), got.to_bits(), "{bits:#06x}");
            }
        }
    }

    #[test]
    fn bf16_rounds_to_nearest_even_at_every_boundary() {
        // For every bf16, the f32 values around it: itself, just below, at and above the tie.
        for top in 0..=u16::MAX {
            for low in [0, 1, 0x7fff, 0x8000, 0x8001, 0xffff] {
                let x = f32::from_bits((u32::from(top) << 16) | low);
                let (want, got) = (bf16::from_f32(x), f32_to_bf16(x));
                assert_eq!(want.is_nan(), got.is_nan(), "{:#010x}", x.to_bits());
                if !want.is_nan() {
                    assert_eq!(want.to_bits(), got.to_bits(), "{:#010x}", x.to_bits());
                }
            }
        }
    }
}
