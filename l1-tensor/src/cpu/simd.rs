//! Sixteen running sums and one step of a dot product, per instruction set and element type.
//!
//! The attention kernel is written once over [`Dot`]. Its unit is the 32-bit *word*: one f32, or
//! two neighbouring bf16. A step multiplies a vector of 16 words with one broadcast word and adds
//! to 16 sums: one fused multiply-add for f32, two for bf16 (odd half first, as `vdpbf16ps` does),
//! so the bf16 steps of all instruction sets agree but for subnormal numbers, which the hardware
//! instruction flushes to zero.

use super::lanes::round_bf16;

/// Sixteen f32 sums that take dot-product steps.
///
/// # Safety
/// Callers run the methods only where the instruction set behind the type is available, with
/// `v` pointing at 16 readable words and `s` at one.
pub(crate) trait Dot: Copy {
    /// Sixteen sums.
    type Acc: Copy;
    /// How many accumulators fit the register file beside operands.
    const REGISTERS: usize;
    /// Whether a word is a pair of bf16.
    const PAIRS: bool;
    /// All zero.
    unsafe fn zero() -> Self::Acc;
    /// `acc[i] += v[i] * s`, for words of this type's kind.
    unsafe fn step(acc: Self::Acc, v: *const u32, s: *const u32) -> Self::Acc;
    /// Write the 16 sums.
    unsafe fn store(acc: Self::Acc, out: *mut f32);
    /// Sixteen values as eight pairs of bf16, the even one in the low half: to nearest even, NaN
    /// kept.
    #[inline(always)]
    unsafe fn round(values: [f32; 16]) -> [u32; 8] {
        let bits = values.map(|x| u32::from(round_bf16(x).to_bits()));
        std::array::from_fn(|i| bits[2 * i] | bits[2 * i + 1] << 16)
    }
}

#[inline(always)]
fn low(w: u32) -> f32 {
    f32::from_bits(w << 16)
}

#[inline(always)]
fn high(w: u32) -> f32 {
    f32::from_bits(w & 0xffff_0000)
}

/// Plain Rust on words that are f32.
#[derive(Clone, Copy)]
pub(crate) struct PortableF32;

/// Plain Rust on words that are bf16 pairs.
#[derive(Clone, Copy)]
pub(crate) struct PortableBf16;

macro_rules! portable {
    ($name:ty, $pairs:literal, |$acc:ident, $v:ident, $s:ident| $step:expr) => {
        impl Dot for $name {
            type Acc = [f32; 16];
            const REGISTERS: usize = 4;
            const PAIRS: bool = $pairs;
            #[inline(always)]
            unsafe fn zero() -> [f32; 16] {
                [0.0; 16]
            }
            #[inline(always)]
            unsafe fn step(mut acc: [f32; 16], v: *const u32, s: *const u32) -> [f32; 16] {
                // SAFETY: the caller's promise: 16 words at `v`, one at `s`.
                let ($s, v) = unsafe { (s.read(), v.cast::<[u32; 16]>().read()) };
                for i in 0..16 {
                    let ($acc, $v) = (acc[i], v[i]);
                    acc[i] = $step;
                }
                acc
            }
            #[inline(always)]
            unsafe fn store(acc: [f32; 16], out: *mut f32) {
                // SAFETY: the caller's promise: room for 16 floats.
                unsafe { out.cast::<[f32; 16]>().write_unaligned(acc) }
            }
        }
    };
}
portable!(PortableF32, false, |acc, v, s| f32::from_bits(v).mul_add(f32::from_bits(s), acc));
portable!(PortableBf16, true, |acc, v, s| low(v).mul_add(low(s), high(v).mul_add(high(s), acc)));

#[cfg(target_arch = "x86_64")]
pub(crate) use x86::*;

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    use super::Dot;
    use crate::cpu::matmul::round_16;

    /// AVX-512 on f32 words.
    #[derive(Clone, Copy)]
    pub(crate) struct Avx512F32;
    /// AVX-512 on bf16 pairs, widened to f32 and multiplied in two steps.
    #[derive(Clone, Copy)]
    pub(crate) struct Avx512Wide;
    /// AVX-512 with the bf16 dot product instruction.
    #[derive(Clone, Copy)]
    pub(crate) struct Avx512Bf16;

    macro_rules! avx512 {
        ($name:ty, $pairs:literal, |$acc:ident, $v:ident, $s:ident| $step:expr) => {
            impl Dot for $name {
                type Acc = __m512;
                const REGISTERS: usize = 24;
                const PAIRS: bool = $pairs;
                #[inline(always)]
                unsafe fn zero() -> __m512 {
                    // SAFETY: the trait's contract: AVX-512 is available.
                    unsafe { _mm512_setzero_ps() }
                }
                #[inline(always)]
                unsafe fn step($acc: __m512, v: *const u32, s: *const u32) -> __m512 {
                    // SAFETY: the trait's contract: AVX-512 is available, 16 words at `v`, 1 at `s`.
                    unsafe {
                        let $v = _mm512_loadu_si512(v.cast());
                        let $s = _mm512_set1_epi32(s.cast::<i32>().read());
                        $step
                    }
                }
                #[inline(always)]
                unsafe fn store(acc: __m512, out: *mut f32) {
                    // SAFETY: the trait's contract: room for 16 floats.
                    unsafe { _mm512_storeu_ps(out, acc) }
                }
                #[inline(always)]
                unsafe fn round(values: [f32; 16]) -> [u32; 8] {
                    // SAFETY: the trait's contract; sixteen bf16 are eight words.
                    unsafe { std::mem::transmute(round_16(values)) }
                }
            }
        };
    }
    avx512!(Avx512F32, false, |acc, v, s| _mm512_fmadd_ps(
        _mm512_castsi512_ps(v),
        _mm512_castsi512_ps(s),
        acc
    ));
    avx512!(Avx512Wide, true, |acc, v, s| {
        let mask = _mm512_set1_epi32(0xffff_0000u32 as i32);
        let high = |x| _mm512_castsi512_ps(_mm512_and_si512(x, mask));
        let low = |x| _mm512_castsi512_ps(_mm512_slli_epi32::<16>(x));
        _mm512_fmadd_ps(low(v), low(s), _mm512_fmadd_ps(high(v), high(s), acc))
    });
    avx512!(Avx512Bf16, true, |acc, v, s| _mm512_dpbf16_ps(
        acc,
        std::mem::transmute::<__m512i, __m512bh>(v),
        std::mem::transmute::<__m512i, __m512bh>(s)
    ));

    /// AVX2 with FMA on f32 words: two vectors of 8 make the 16 sums.
    #[derive(Clone, Copy)]
    pub(crate) struct Avx2F32;
    /// AVX2 with FMA on bf16 pairs, widened to f32.
    #[derive(Clone, Copy)]
    pub(crate) struct Avx2Wide;

    macro_rules! avx2 {
        ($name:ty, $pairs:literal, |$acc:ident, $v:ident, $s:ident| $step:expr) => {
            impl Dot for $name {
                type Acc = [__m256; 2];
                const REGISTERS: usize = 4;
                const PAIRS: bool = $pairs;
                #[inline(always)]
                unsafe fn zero() -> [__m256; 2] {
                    // SAFETY: the trait's contract: AVX2 and FMA are available.
                    unsafe { [_mm256_setzero_ps(); 2] }
                }
                #[inline(always)]
                unsafe fn step(a: [__m256; 2], v: *const u32, s: *const u32) -> [__m256; 2] {
                    // SAFETY: the trait's contract: AVX2 and FMA, 16 words at `v`, one at `s`.
                    unsafe {
                        let $s = _mm256_set1_epi32(s.cast::<i32>().read());
                        let half = |$acc: __m256, p: *const u32| {
                            let $v = _mm256_loadu_si256(p.cast());
                            $step
                        };
                        [half(a[0], v), half(a[1], v.add(8))]
                    }
                }
                #[inline(always)]
                unsafe fn store(a: [__m256; 2], out: *mut f32) {
                    // SAFETY: the trait's contract: room for 16 floats.
                    unsafe {
                        _mm256_storeu_ps(out, a[0]);
                        _mm256_storeu_ps(out.add(8), a[1]);
                    }
                }
            }
        };
    }
    avx2!(Avx2F32, false, |acc, v, s| _mm256_fmadd_ps(
        _mm256_castsi256_ps(v),
        _mm256_castsi256_ps(s),
        acc
    ));
    avx2!(Avx2Wide, true, |acc, v, s| {
        let mask = _mm256_set1_epi32(0xffff_0000u32 as i32);
        let high = |x| _mm256_castsi256_ps(_mm256_and_si256(x, mask));
        let low = |x| _mm256_castsi256_ps(_mm256_slli_epi32::<16>(x));
        _mm256_fmadd_ps(low(v), low(s), _mm256_fmadd_ps(high(v), high(s), acc))
    });
}
