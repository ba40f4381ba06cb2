//! The multiplications of x86-64: AVX-512 with the bf16 dot product, AVX-512, AVX2.

use std::arch::x86_64::*;
use std::marker::PhantomData;

use half::bf16;

use crate::weight::Line;

use super::activation::Activation;
use super::tile::{Dot, LANES, Tile, entry_points};
use super::{Blocks, Job, Lines};

/// `vdpbf16ps`: two bf16 products into each of sixteen f32 sums, in one instruction.
///
/// Intel's manual does not specify all of it. On Zen 5 it is exactly `fma` with the odd element,
/// then `fma` with the even one, each rounded to nearest even, denormals read and written as zero.
/// The other kernels take bf16 activations in that order too.
pub(super) struct Avx512Dot;

impl Dot for Avx512Dot {
    type X = bf16;
    type Acc = __m512;
    type W = __m512i;
    // 24 accumulators, 2 lines of weights and a broadcast make 27 of 32 registers.
    const ROWS: usize = 12;
    // Measured on Zen 5: without prefetches 15% faster for 1 and 2 rows, the same at 6, a fifth
    // slower at 8.
    const UNAIDED_ROWS: usize = 5;

    #[inline(always)]
    unsafe fn zero() -> __m512 {
        // SAFETY: the caller's promise.
        unsafe { _mm512_setzero_ps() }
    }

    #[inline(always)]
    unsafe fn sums(from: *const f32) -> __m512 {
        // SAFETY: the caller's promise.
        unsafe { _mm512_loadu_ps(from) }
    }

    #[inline(always)]
    unsafe fn load(line: *const Line) -> __m512i {
        // SAFETY: the caller's promise; a line is aligned to its size.
        unsafe { _mm512_load_si512(line.cast()) }
    }

    #[inline(always)]
    unsafe fn pair(acc: __m512, x: *const bf16, w: __m512i) -> __m512 {
        // SAFETY: the caller's promise; the bits of a `__m512i` are a `__m512bh`.
        unsafe {
            let x = _mm512_set1_epi32(x.cast::<i32>().read_unaligned());
            _mm512_dpbf16_ps(acc, bh(x), bh(w))
        }
    }

    #[inline(always)]
    unsafe fn last(acc: __m512, x: *const bf16, w: __m512i) -> __m512 {
        // SAFETY: as above. The missing odd element is zero, as is its weight.
        unsafe {
            let x = _mm512_set1_epi32(i32::from((*x).to_bits()));
            _mm512_dpbf16_ps(acc, bh(x), bh(w))
        }
    }

    #[inline(always)]
    unsafe fn store(acc: __m512, out: *mut f32) {
        // SAFETY: the caller's promise.
        unsafe { _mm512_storeu_ps(out, acc) }
    }

    #[inline(always)]
    unsafe fn round(y: [f32; LANES]) -> [bf16; LANES] {
        // SAFETY: the caller's promise.
        unsafe { round_16(y) }
    }

    entry_points!(bf16, "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma");
}

/// Rounds sixteen values as [`crate::cpu::lanes::round_bf16`], which the compiler does not
/// vectorise here. (`vcvtneps2bf16` would be one instruction, but takes subnormals for zero.)
///
/// # Safety
/// The processor must have AVX-512.
#[inline(always)]
pub(in crate::cpu) unsafe fn round_16(y: [f32; LANES]) -> [bf16; LANES] {
    // SAFETY: the caller's promise; sixteen u16 are sixteen bf16.
    unsafe {
        let y = _mm512_loadu_ps(y.as_ptr());
        let bits = _mm512_castps_si512(y);
        let upper = _mm512_srli_epi32::<16>(bits);
        let odd = _mm512_and_si512(upper, _mm512_set1_epi32(1));
        let half = _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff));
        let rounded = _mm512_srli_epi32::<16>(_mm512_add_epi32(bits, half));
        let is_nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(y, y);
        let rounded = _mm512_mask_or_epi32(rounded, is_nan, upper, _mm512_set1_epi32(0x40));
        std::mem::transmute::<__m256i, [bf16; LANES]>(_mm512_cvtepi32_epi16(rounded))
    }
}

#[inline(always)]
fn bh(x: __m512i) -> __m512bh {
    // SAFETY: both are 64 bytes without invalid values.
    unsafe { std::mem::transmute(x) }
}

/// Sixteen lanes of f32 `fma`. A line of weights widens to the even and the odd ones: bf16 is the
/// upper half of an f32, so that is a shift and a mask.
pub(super) struct Avx512<X>(PhantomData<X>);

impl<X: Activation> Dot for Avx512<X> {
    type X = X;
    type Acc = __m512;
    type W = (__m512, __m512);
    // 20 accumulators and 4 vectors of weights; 12 rows would spill.
    const ROWS: usize = 10;

    #[inline(always)]
    unsafe fn zero() -> __m512 {
        // SAFETY: the caller's promise.
        unsafe { _mm512_setzero_ps() }
    }

    #[inline(always)]
    unsafe fn sums(from: *const f32) -> __m512 {
        // SAFETY: the caller's promise.
        unsafe { _mm512_loadu_ps(from) }
    }

    #[inline(always)]
    unsafe fn load(line: *const Line) -> (__m512, __m512) {
        // SAFETY: the caller's promise; a line is aligned to its size.
        unsafe {
            let both = _mm512_load_si512(line.cast());
            let odd = _mm512_and_si512(both, _mm512_set1_epi32(0xffff_0000_u32.cast_signed()));
            let even = _mm512_slli_epi32::<16>(both);
            (_mm512_castsi512_ps(even), _mm512_castsi512_ps(odd))
        }
    }

    #[inline(always)]
    unsafe fn pair(acc: __m512, x: *const X, (even, odd): (__m512, __m512)) -> __m512 {
        // SAFETY: the caller's promise.
        unsafe {
            let x0 = _mm512_set1_ps(X::widen(x));
            let x1 = _mm512_set1_ps(X::widen(x.add(1)));
            if X::ODD_FIRST {
                _mm512_fmadd_ps(x0, even, _mm512_fmadd_ps(x1, odd, acc))
            } else {
                _mm512_fmadd_ps(x1, odd, _mm512_fmadd_ps(x0, even, acc))
            }
        }
    }

    #[inline(always)]
    unsafe fn last(acc: __m512, x: *const X, (even, odd): (__m512, __m512)) -> __m512 {
        // SAFETY: the caller's promise.
        unsafe {
            let acc =
                if X::ODD_FIRST { _mm512_fmadd_ps(_mm512_setzero_ps(), odd, acc) } else { acc };
            _mm512_fmadd_ps(_mm512_set1_ps(X::widen(x)), even, acc)
        }
    }

    #[inline(always)]
    unsafe fn store(acc: __m512, out: *mut f32) {
        // SAFETY: the caller's promise.
        unsafe { _mm512_storeu_ps(out, acc) }
    }

    #[inline(always)]
    unsafe fn round(y: [f32; LANES]) -> [bf16; LANES] {
        // SAFETY: the caller's promise.
        unsafe { round_16(y) }
    }

    entry_points!(X, "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma");
}

/// The same with AVX2 and FMA: a vector of sixteen is two registers of eight.
pub(super) struct Avx2<X>(PhantomData<X>);

impl<X: Activation> Dot for Avx2<X> {
    type X = X;
    type Acc = [__m256; 2];
    type W = [__m256i; 2];
    // 8 accumulators, 4 registers of weights and their widened halves in 16 registers.
    const ROWS: usize = 2;

    #[inline(always)]
    unsafe fn zero() -> [__m256; 2] {
        // SAFETY: the caller's promise.
        unsafe { [_mm256_setzero_ps(); 2] }
    }

    #[inline(always)]
    unsafe fn sums(from: *const f32) -> [__m256; 2] {
        // SAFETY: the caller's promise.
        unsafe { [_mm256_loadu_ps(from), _mm256_loadu_ps(from.add(8))] }
    }

    #[inline(always)]
    unsafe fn load(line: *const Line) -> [__m256i; 2] {
        // SAFETY: the caller's promise; a line is aligned to its size.
        unsafe {
            let half = line.cast::<__m256i>();
            [_mm256_load_si256(half), _mm256_load_si256(half.add(1))]
        }
    }

    #[inline(always)]
    unsafe fn pair(mut acc: [__m256; 2], x: *const X, w: [__m256i; 2]) -> [__m256; 2] {
        // SAFETY: the caller's promise.
        unsafe {
            let x0 = _mm256_set1_ps(X::widen(x));
            let x1 = _mm256_set1_ps(X::widen(x.add(1)));
            for (acc, w) in acc.iter_mut().zip(w) {
                *acc = if X::ODD_FIRST {
                    _mm256_fmadd_ps(x0, even(w), _mm256_fmadd_ps(x1, odd(w), *acc))
                } else {
                    _mm256_fmadd_ps(x1, odd(w), _mm256_fmadd_ps(x0, even(w), *acc))
                };
            }
            acc
        }
    }

    #[inline(always)]
    unsafe fn last(mut acc: [__m256; 2], x: *const X, w: [__m256i; 2]) -> [__m256; 2] {
        // SAFETY: the caller's promise.
        unsafe {
            let x0 = _mm256_set1_ps(X::widen(x));
            for (acc, w) in acc.iter_mut().zip(w) {
                if X::ODD_FIRST {
                    *acc = _mm256_fmadd_ps(_mm256_setzero_ps(), odd(w), *acc);
                }
                *acc = _mm256_fmadd_ps(x0, even(w), *acc);
            }
            acc
        }
    }

    #[inline(always)]
    unsafe fn store(acc: [__m256; 2], out: *mut f32) {
        // SAFETY: the caller's promise.
        unsafe {
            _mm256_storeu_ps(out, acc[0]);
            _mm256_storeu_ps(out.add(8), acc[1]);
        }
    }

    entry_points!(X, "avx2,fma");
}

/// # Safety
/// The processor must have AVX2.
#[inline(always)]
unsafe fn even(w: __m256i) -> __m256 {
    // SAFETY: the caller's promise.
    unsafe { _mm256_castsi256_ps(_mm256_slli_epi32::<16>(w)) }
}

/// # Safety
/// The processor must have AVX2.
#[inline(always)]
unsafe fn odd(w: __m256i) -> __m256 {
    // SAFETY: the caller's promise.
    unsafe {
        let mask = _mm256_set1_epi32(0xffff_0000_u32.cast_signed());
        _mm256_castsi256_ps(_mm256_and_si256(w, mask))
    }
}
