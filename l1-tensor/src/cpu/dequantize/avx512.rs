//! Dequantization with AVX-512, with and without its conversion to bf16.

use std::arch::x86_64::*;

use super::{Lanes, of_formats};
use crate::weight::{Levels, Line, Shape};

/// Codes as numbers, in the order of the table that a lookup of 4 or 5 bits reads.
#[repr(align(64))]
struct Table([f32; 32]);

const fn table(zero: i32) -> Table {
    let mut codes = [0.0; 32];
    let mut i = 0;
    while i < 32 {
        codes[i] = (i as i32 - zero) as f32;
        i += 1;
    }
    Table(codes)
}

/// Tables by the code that stands for zero.
static FROM_0: Table = table(0);
static FROM_8: Table = table(8);
static FROM_16: Table = table(16);
static FROM_32: Table = table(32);

/// Levels of codes of 4 bits.
const fn levels(of: Levels) -> Table {
    let mut codes = [0.0; 32];
    let mut i = 0;
    while i < 32 {
        codes[i] = of.table()[i % 16];
        i += 1;
    }
    Table(codes)
}

static IQ4_NL: Table = levels(Levels::Iq4Nl);
static E2M1: Table = levels(Levels::E2m1);

/// What the upper two bits of a code of 6 bits add; a lookup reads two bits of the next code with them.
static UPPER: Table = {
    let mut upper = [0.0; 32];
    let mut i = 0;
    while i < 32 {
        upper[i] = (i % 4 * 16) as f32;
        i += 1;
    }
    Table(upper)
};

/// The numbers that codes of four bits stand for, or the lower four bits of longer ones: 32, of which the upper half
/// repeats the lower one or goes on.
#[inline(always)]
pub(super) fn numbers(shape: Shape) -> *const f32 {
    let table = match (shape.levels, shape.zero) {
        (Levels::Iq4Nl, _) => &IQ4_NL,
        (Levels::E2m1, _) => &E2M1,
        (Levels::Integers, 0) => &FROM_0,
        (Levels::Integers, 8) => &FROM_8,
        (Levels::Integers, 16) => &FROM_16,
        (Levels::Integers, _) => &FROM_32,
    };
    table.0.as_ptr()
}

/// Lanes of a 512-bit register. `BF16`: the processor converts to bf16 itself.
pub(super) struct Avx512<const BF16: bool>;

impl<const BF16: bool> Avx512<BF16> {
    /// Rounds 32 numbers to bf16, those of `low` first. `exact`: they are bf16 already, perhaps subnormal.
    ///
    /// # Safety
    /// The processor must run the instruction set.
    #[inline(always)]
    pub(super) unsafe fn narrow(exact: bool, low: __m512, high: __m512) -> __m512i {
        // SAFETY: the caller's promise; the bits of a `__m512bh` are a line.
        unsafe {
            if BF16 && !exact {
                return std::mem::transmute::<__m512bh, __m512i>(_mm512_cvtne2ps_pbh(high, low));
            }
            // The upper word of each lane, of both registers.
            let words = _mm512_set_epi16(
                63, 61, 59, 57, 55, 53, 51, 49, 47, 45, 43, 41, 39, 37, 35, 33, //
                31, 29, 27, 25, 23, 21, 19, 17, 15, 13, 11, 9, 7, 5, 3, 1,
            );
            let (low, high) = match exact {
                true => (_mm512_castps_si512(low), _mm512_castps_si512(high)),
                false => (round(low), round(high)),
            };
            _mm512_permutex2var_epi16(low, words, high)
        }
    }
}

impl<const BF16: bool> Lanes for Avx512<BF16> {
    type F = __m512;
    /// Four bits, and those above; for codes of 8 bits neither.
    type Codes = (__m512i, __m512i, *const u8);

    #[inline(always)]
    unsafe fn halves(at: *const u8) -> __m512 {
        // SAFETY: the caller's promise.
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(at.cast())) }
    }

    #[inline(always)]
    unsafe fn bytes(at: *const u8, signed: bool) -> __m512 {
        // SAFETY: the caller's promise.
        unsafe {
            let bytes = _mm_loadu_si128(at.cast());
            _mm512_cvtepi32_ps(match signed {
                true => _mm512_cvtepi8_epi32(bytes),
                false => _mm512_cvtepu8_epi32(bytes),
            })
        }
    }

    #[inline(always)]
    unsafe fn small_floats(at: *const u8) -> __m512 {
        // SAFETY: the caller's promise. The bits of an E4M3, up by seven, are an f16 that is 2^8 times smaller.
        unsafe {
            let bytes = _mm256_cvtepu8_epi16(_mm_loadu_si128(at.cast()));
            let halves = _mm256_slli_epi16::<7>(bytes);
            _mm512_mul_ps(_mm512_cvtph_ps(halves), _mm512_set1_ps(256.0))
        }
    }

    #[inline(always)]
    unsafe fn powers(at: *const u8) -> __m512 {
        // SAFETY: the caller's promise. The byte is an f32's exponent; the lowest power is subnormal.
        unsafe {
            let bytes = _mm512_cvtepu8_epi32(_mm_loadu_si128(at.cast()));
            let bits = _mm512_slli_epi32::<23>(bytes);
            _mm512_castsi512_ps(_mm512_max_epu32(bits, _mm512_set1_epi32(1 << 22)))
        }
    }

    #[inline(always)]
    unsafe fn mul(a: __m512, b: __m512) -> __m512 {
        // SAFETY: the caller's promise.
        unsafe { _mm512_mul_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn neg(a: __m512) -> __m512 {
        // SAFETY: the caller's promise.
        unsafe { _mm512_xor_ps(a, _mm512_set1_ps(-0.0)) }
    }

    #[inline(always)]
    unsafe fn mul_add(a: __m512, b: __m512, c: __m512) -> __m512 {
        // SAFETY: the caller's promise.
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }

    #[inline(always)]
    unsafe fn twice(a: __m512, half: usize) -> __m512 {
        // SAFETY: the caller's promise.
        unsafe {
            let lanes = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
            let first = _mm512_set1_epi32(8 * half as i32);
            _mm512_permutexvar_ps(_mm512_add_epi32(lanes, first), a)
        }
    }

    #[inline(always)]
    unsafe fn codes(shape: Shape, step: *const u8, half: usize) -> Self::Codes {
        // SAFETY: the caller's promise; lines of four bits are in front of those of the upper bits.
        unsafe {
            let none = _mm512_setzero_si512();
            if shape.bits == 8 {
                return (none, none, step.add(128 * half));
            }
            let low = _mm512_load_si512(step.add(64 * half).cast());
            let upper = step.add(256);
            let upper = match shape.bits {
                5 => _mm512_cvtepu8_epi32(_mm_load_si128(upper.add(16 * half).cast())),
                6 => _mm512_cvtepu16_epi32(_mm256_load_si256(upper.add(32 * half).cast())),
                _ => none,
            };
            (low, upper, step)
        }
    }

    #[inline(always)]
    unsafe fn code(shape: Shape, (low, upper, bytes): Self::Codes, t: usize) -> __m512 {
        // SAFETY: the caller's promise.
        unsafe {
            if shape.bits == 8 {
                return Self::bytes(bytes.add(16 * t), true);
            }
            let codes = numbers(shape);
            let low = down(low, 4 * t as i32);
            // A lookup reads the lowest bits of an index and ignores the others.
            match shape.bits {
                4 => _mm512_permutexvar_ps(low, _mm512_load_ps(codes)),
                5 => {
                    let fifteen = _mm512_set1_epi32(15);
                    let index = select(fifteen, low, down(upper, t as i32 - 4));
                    let (first, second) = (_mm512_load_ps(codes), _mm512_load_ps(codes.add(16)));
                    _mm512_permutex2var_ps(first, index, second)
                }
                _ => {
                    let low = _mm512_permutexvar_ps(low, _mm512_load_ps(codes));
                    let upper = down(upper, 2 * t as i32);
                    _mm512_add_ps(
                        low,
                        _mm512_permutexvar_ps(upper, _mm512_load_ps(UPPER.0.as_ptr())),
                    )
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn store(exact: bool, low: __m512, high: __m512, out: *mut Line) {
        // SAFETY: the caller's promise.
        unsafe { _mm512_store_si512(out.cast(), Self::narrow(exact, low, high)) }
    }
}

/// Bits whose upper words are the nearest bf16, ties to even. Weights are finite, so a NaN needs no care.
///
/// # Safety
/// The processor must have AVX-512.
#[inline(always)]
unsafe fn round(a: __m512) -> __m512i {
    // SAFETY: the caller's promise.
    unsafe {
        let bits = _mm512_castps_si512(a);
        let odd = _mm512_and_si512(_mm512_srli_epi32::<16>(bits), _mm512_set1_epi32(1));
        _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)))
    }
}

/// Shifts each lane down by `by` bits, or up by `-by`.
///
/// # Safety
/// The processor must have AVX-512.
#[inline(always)]
unsafe fn down(a: __m512i, by: i32) -> __m512i {
    // SAFETY: the caller's promise.
    unsafe {
        match by {
            0 => a,
            1.. => _mm512_srlv_epi32(a, _mm512_set1_epi32(by)),
            _ => _mm512_sllv_epi32(a, _mm512_set1_epi32(-by)),
        }
    }
}

/// Bits of `a` where `mask` is set, else those of `b`.
///
/// # Safety
/// The processor must have AVX-512.
#[inline(always)]
unsafe fn select(mask: __m512i, a: __m512i, b: __m512i) -> __m512i {
    // SAFETY: the caller's promise.
    unsafe { _mm512_ternarylogic_epi32::<0xca>(mask, a, b) }
}

of_formats!(with_bf16, Avx512<true>, "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma");
of_formats!(without_bf16, Avx512<false>, "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma");
