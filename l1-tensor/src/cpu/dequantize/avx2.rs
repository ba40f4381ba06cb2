//! Dequantization with AVX2: sixteen lanes are two registers.
//!
//! The instructions that narrow work on each half of a register, so they mix the halves of two registers. Codes are
//! therefore taken in the order `0..4, 8..12 | 4..8, 12..16`, which narrowing turns into the order of the lanes.

use std::arch::x86_64::*;

use super::{Lanes, of_formats};
use crate::weight::{Levels, Line, STEP, Shape};

/// Lanes of two 256-bit registers.
struct Avx2;

/// Two registers of eight lanes.
type Pair = [__m256i; 2];

impl Lanes for Avx2 {
    type F = [__m256; 2];
    /// Four bits, and those above; for codes of 8 bits neither.
    type Codes = (Pair, Pair, *const u8);

    #[inline(always)]
    unsafe fn halves(at: *const u8) -> [__m256; 2] {
        // SAFETY: the caller's promise.
        unsafe {
            [
                _mm256_cvtph_ps(_mm_loadu_si128(at.cast())),
                _mm256_cvtph_ps(_mm_loadu_si128(at.add(16).cast())),
            ]
        }
    }

    #[inline(always)]
    unsafe fn bytes(at: *const u8, signed: bool) -> [__m256; 2] {
        // SAFETY: the caller's promise.
        unsafe { [eight_bytes(at, signed), eight_bytes(at.add(8), signed)] }
    }

    #[inline(always)]
    unsafe fn small_floats(at: *const u8) -> [__m256; 2] {
        // SAFETY: the caller's promise.
        unsafe { [eight_small_floats(at), eight_small_floats(at.add(8))] }
    }

    #[inline(always)]
    unsafe fn powers(at: *const u8) -> [__m256; 2] {
        // SAFETY: the caller's promise.
        unsafe { [eight_powers(at), eight_powers(at.add(8))] }
    }

    #[inline(always)]
    unsafe fn mul(a: [__m256; 2], b: [__m256; 2]) -> [__m256; 2] {
        // SAFETY: the caller's promise.
        unsafe { [_mm256_mul_ps(a[0], b[0]), _mm256_mul_ps(a[1], b[1])] }
    }

    #[inline(always)]
    unsafe fn neg(a: [__m256; 2]) -> [__m256; 2] {
        // SAFETY: the caller's promise.
        unsafe {
            let sign = _mm256_set1_ps(-0.0);
            [_mm256_xor_ps(a[0], sign), _mm256_xor_ps(a[1], sign)]
        }
    }

    #[inline(always)]
    unsafe fn mul_add(a: [__m256; 2], b: [__m256; 2], c: [__m256; 2]) -> [__m256; 2] {
        // SAFETY: the caller's promise.
        unsafe { [_mm256_fmadd_ps(a[0], b[0], c[0]), _mm256_fmadd_ps(a[1], b[1], c[1])] }
    }

    #[inline(always)]
    unsafe fn twice(a: [__m256; 2], half: usize) -> [__m256; 2] {
        // SAFETY: the caller's promise.
        unsafe {
            // Within each half of the register: lanes 0 0 1 1, and 2 2 3 3.
            [_mm256_unpacklo_ps(a[half], a[half]), _mm256_unpackhi_ps(a[half], a[half])]
        }
    }

    #[inline(always)]
    unsafe fn codes(shape: Shape, step: *const u8, half: usize) -> Self::Codes {
        // SAFETY: the caller's promise; lines of four bits are in front of those of the upper bits.
        unsafe {
            let none = [_mm256_setzero_si256(); 2];
            if shape.bits == 8 {
                return (none, none, step.add(STEP / 2 * 16 * half));
            }
            let low = step.add(64 * half).cast::<__m256i>();
            let low = crossed(_mm256_load_si256(low), _mm256_load_si256(low.add(1)));
            let upper = step.add(256);
            let upper = match shape.bits {
                5 => {
                    let at = upper.add(16 * half);
                    let eight = |at: *const u8| _mm256_cvtepu8_epi32(_mm_loadl_epi64(at.cast()));
                    crossed(eight(at), eight(at.add(8)))
                }
                6 => {
                    let at = upper.add(32 * half);
                    let eight = |at: *const u8| _mm256_cvtepu16_epi32(_mm_load_si128(at.cast()));
                    crossed(eight(at), eight(at.add(16)))
                }
                _ => none,
            };
            (low, upper, step)
        }
    }

    #[inline(always)]
    unsafe fn code(shape: Shape, (low, upper, bytes): Self::Codes, t: usize) -> [__m256; 2] {
        // SAFETY: the caller's promise.
        unsafe {
            if shape.bits == 8 {
                let bytes =
                    _mm_shuffle_epi32::<0b11_01_10_00>(_mm_load_si128(bytes.add(16 * t).cast()));
                return [
                    _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes)),
                    _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_unpackhi_epi64(bytes, bytes))),
                ];
            }
            [code(shape, low[0], upper[0], t), code(shape, low[1], upper[1], t)]
        }
    }

    #[inline(always)]
    unsafe fn store(_exact: bool, low: [__m256; 2], high: [__m256; 2], out: *mut Line) {
        // SAFETY: the caller's promise.
        unsafe {
            let out = out.cast::<__m256i>();
            _mm256_store_si256(out, narrow(low));
            _mm256_store_si256(out.add(1), narrow(high));
        }
    }
}

/// Eight bytes as numbers.
///
/// # Safety
/// They must be readable, and the processor must have AVX2. So it must for all functions below.
#[inline(always)]
unsafe fn eight_bytes(at: *const u8, signed: bool) -> __m256 {
    // SAFETY: the caller's promise.
    unsafe {
        let bytes = _mm_loadl_epi64(at.cast());
        _mm256_cvtepi32_ps(match signed {
            true => _mm256_cvtepi8_epi32(bytes),
            false => _mm256_cvtepu8_epi32(bytes),
        })
    }
}

/// Eight E4M3 as numbers: the bits, up by seven, are an f16 that is 2^8 times smaller.
///
/// # Safety
/// As [`eight_bytes`].
#[inline(always)]
unsafe fn eight_small_floats(at: *const u8) -> __m256 {
    // SAFETY: the caller's promise.
    unsafe {
        let halves = _mm_slli_epi16::<7>(_mm_cvtepu8_epi16(_mm_loadl_epi64(at.cast())));
        _mm256_mul_ps(_mm256_cvtph_ps(halves), _mm256_set1_ps(256.0))
    }
}

/// Eight powers of two: the byte is an f32's exponent, and the lowest power is subnormal.
///
/// # Safety
/// As [`eight_bytes`].
#[inline(always)]
unsafe fn eight_powers(at: *const u8) -> __m256 {
    // SAFETY: the caller's promise.
    unsafe {
        let bits = _mm256_slli_epi32::<23>(_mm256_cvtepu8_epi32(_mm_loadl_epi64(at.cast())));
        _mm256_castsi256_ps(_mm256_max_epu32(bits, _mm256_set1_epi32(1 << 22)))
    }
}

/// Eight levels of codes of four bits, whose upper bits mean nothing.
///
/// # Safety
/// As [`eight_bytes`].
#[inline(always)]
unsafe fn level(levels: Levels, codes: __m256i) -> __m256 {
    // SAFETY: the caller's promise; a table holds two registers. A lookup reads three bits of an index.
    unsafe {
        let table = const { [Levels::Iq4Nl.table(), Levels::E2m1.table()] };
        let table = table[usize::from(levels == Levels::E2m1)];
        let first = _mm256_permutevar8x32_ps(_mm256_loadu_ps(table.as_ptr()), codes);
        let second = _mm256_permutevar8x32_ps(_mm256_loadu_ps(table[8..].as_ptr()), codes);
        // The fourth bit, as a sign, chooses.
        _mm256_blendv_ps(first, second, _mm256_castsi256_ps(_mm256_slli_epi32::<28>(codes)))
    }
}

/// Both lower halves, and both upper ones.
///
/// # Safety
/// As [`eight_bytes`].
#[inline(always)]
unsafe fn crossed(first: __m256i, second: __m256i) -> Pair {
    // SAFETY: the caller's promise.
    unsafe {
        [
            _mm256_permute2x128_si256::<0x20>(first, second),
            _mm256_permute2x128_si256::<0x31>(first, second),
        ]
    }
}

/// Code `t` of eight lanes.
///
/// # Safety
/// As [`eight_bytes`].
#[inline(always)]
unsafe fn code(shape: Shape, low: __m256i, upper: __m256i, t: usize) -> __m256 {
    // SAFETY: the caller's promise.
    unsafe {
        let (above, t) = (shape.bits as i32 - 4, t as i32);
        if shape.levels != Levels::Integers {
            return level(shape.levels, down(low, 4 * t));
        }
        let mut code = _mm256_and_si256(down(low, 4 * t), _mm256_set1_epi32(15));
        if above > 0 {
            let mask = _mm256_set1_epi32(((1 << above) - 1) << 4);
            code = _mm256_or_si256(code, _mm256_and_si256(down(upper, above * t - 4), mask));
        }
        if shape.zero > 0 {
            code = _mm256_sub_epi32(code, _mm256_set1_epi32(shape.zero));
        }
        _mm256_cvtepi32_ps(code)
    }
}

/// Shifts each lane down by `by` bits, or up by `-by`.
///
/// # Safety
/// As [`eight_bytes`].
#[inline(always)]
unsafe fn down(a: __m256i, by: i32) -> __m256i {
    // SAFETY: the caller's promise.
    unsafe {
        match by {
            0 => a,
            1.. => _mm256_srl_epi32(a, _mm_cvtsi32_si128(by)),
            _ => _mm256_sll_epi32(a, _mm_cvtsi32_si128(-by)),
        }
    }
}

/// Sixteen bf16, to nearest, ties to even. Weights are finite, so a NaN needs no care.
///
/// # Safety
/// As [`eight_bytes`].
#[inline(always)]
unsafe fn narrow(a: [__m256; 2]) -> __m256i {
    // SAFETY: the caller's promise.
    unsafe { _mm256_packus_epi32(round(a[0]), round(a[1])) }
}

/// The nearest bf16 in the lower half of each lane.
///
/// # Safety
/// As [`eight_bytes`].
#[inline(always)]
unsafe fn round(a: __m256) -> __m256i {
    // SAFETY: the caller's promise.
    unsafe {
        let bits = _mm256_castps_si256(a);
        let odd = _mm256_and_si256(_mm256_srli_epi32::<16>(bits), _mm256_set1_epi32(1));
        let half = _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff));
        _mm256_srli_epi32::<16>(_mm256_add_epi32(bits, half))
    }
}

of_formats!(any, Avx2, "avx2,fma,f16c");
