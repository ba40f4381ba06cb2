//! One source for every instruction set.
//!
//! Public, because layers above have loops of their own to write this way: a sampler's passes over a
//! row of logits go through the same few helpers, and so keep the same promises.
//!
//! The helpers below are plain scalar Rust, written so that a compiler can turn sixteen
//! neighbouring elements into one vector: no early exits, no calls, sums kept in sixteen lanes.
//! What the vectors look like is decided where the helpers are *inlined*: [`dispatch!`] compiles
//! one body once for each instruction set, under `#[target_feature]`, and picks one at run time.
//! So there is a single text to read and to test, and no intrinsics.
//!
//! Two things keep the bits in order:
//!
//! * **Sixteen lanes, always.** A sum puts element `i` into lane `i % 16` and adds the lanes up in a
//!   fixed tree. How many hardware registers make up the sixteen lanes changes nothing.
//! * **Fused or not, said by a constant.** `a * b + c` rounds once where the processor has a fused
//!   multiply-add and twice where it has not. Bodies carry `const FMA: bool` and go through
//!   [`mul_add`]; AVX2, AVX-512 and aarch64 fuse, portable x86-64 does not (there `f32::mul_add` is
//!   a library call). Hence the fused instruction sets agree with each other to the last bit, and
//!   portable x86-64 differs from them in the last bits of sums and exponentials.
//!
//! Rust never reorders floating point sums by itself, so "whatever LLVM does" is always the same
//! arithmetic.

use crate::{Element, bf16, f16};

/// Lanes of a sum: one AVX-512 register of f32.
pub const LANES: usize = 16;

/// Whether [`Isa::Portable`](crate::cpu::Isa::Portable) fuses multiply-adds. Public for [`dispatch!`] alone.
#[doc(hidden)]
pub const PORTABLE_FMA: bool = cfg!(any(target_arch = "aarch64", target_feature = "fma"));

/// Compile one body for every instruction set and choose among them at run time.
///
/// ```
/// use l1_tensor::cpu::{Isa, lanes};
///
/// lanes::dispatch! {
///     /// The largest `e^x` of a row.
///     fn largest_exp<const FMA: bool>(x: &[f32]) -> f32 {
///         lanes::exp::<FMA>(lanes::max_of(x))
///     }
/// }
/// for isa in Isa::available() {
///     assert_eq!(largest_exp(isa, &[-1.0, 0.0, -2.0]), 1.0);
/// }
/// ```
///
/// The body must reach its helpers through `#[inline(always)]` functions: what is not inlined is
/// compiled for the baseline processor. More generic parameters may follow `FMA`. The choice costs
/// a few nanoseconds, so dispatch around a loop over rows rather than inside of it.
#[doc(hidden)] // Here. It is shown as `lanes::dispatch`.
#[macro_export]
macro_rules! __dispatch {
    ($(
        $(#[$meta:meta])*
        $vis:vis fn $name:ident<const $fma:ident: bool $(, $g:ident: $bound:path)*>(
            $($arg:ident: $ty:ty),* $(,)?
        ) $(-> $ret:ty)? $body:block
    )*) => {$(
        $(#[$meta])*
        #[allow(clippy::too_many_arguments)]
        $vis fn $name<$($g: $bound),*>(isa: $crate::cpu::Isa, $($arg: $ty),*) $(-> $ret)? {
            #[inline(always)]
            #[allow(clippy::too_many_arguments, clippy::extra_unused_type_parameters)]
            fn body<const $fma: bool $(, $g: $bound)*>($($arg: $ty),*) $(-> $ret)? $body

            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma")]
            #[allow(clippy::too_many_arguments)]
            fn avx2<$($g: $bound),*>($($arg: $ty),*) $(-> $ret)? {
                body::<true $(, $g)*>($($arg),*)
            }

            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512dq,avx512vl")]
            #[allow(clippy::too_many_arguments)]
            fn avx512<$($g: $bound),*>($($arg: $ty),*) $(-> $ret)? {
                body::<true $(, $g)*>($($arg),*)
            }

            match isa {
                #[cfg(target_arch = "x86_64")]
                $crate::cpu::Isa::Avx512 | $crate::cpu::Isa::Avx512Bf16 | $crate::cpu::Isa::Amx
                    if isa.is_available() =>
                {
                    // SAFETY: the guard has asked the processor for these features.
                    unsafe { avx512::<$($g),*>($($arg),*) }
                }
                #[cfg(target_arch = "x86_64")]
                $crate::cpu::Isa::Avx2 if isa.is_available() => {
                    // SAFETY: the guard has asked the processor for these features.
                    unsafe { avx2::<$($g),*>($($arg),*) }
                }
                _ => body::<{ $crate::cpu::lanes::PORTABLE_FMA } $(, $g)*>($($arg),*),
            }
        }
    )*};
}
#[doc(inline)]
pub use __dispatch as dispatch;

/// `a * b + c`, rounded once when `FMA`, else twice.
#[inline(always)]
pub fn mul_add<const FMA: bool>(a: f32, b: f32, c: f32) -> f32 {
    if FMA { a.mul_add(b, c) } else { a * b + c }
}

/// The larger one; a NaN in `a` is passed over, one in `b` stays. One instruction.
#[inline(always)]
pub(crate) fn max(a: f32, b: f32) -> f32 {
    if a > b { a } else { b }
}

/// The sixteen lanes as one sum: halves are added until one is left.
#[inline(always)]
pub(crate) fn sum_lanes(lanes: [f32; LANES]) -> f32 {
    fold_lanes(lanes, |a, b| a + b)
}

/// Fold sixteen lanes in a fixed tree: lane `i` with lane `i + 8`, then `i + 4`, `i + 2`, `i + 1`.
#[inline(always)]
pub fn fold_lanes<T: Copy>(mut lanes: [T; LANES], f: impl Fn(T, T) -> T) -> T {
    // exercise l1.lanes
    let mut half = LANES / 2;
    while half > 0 {
        for i in 0..half {
            lanes[i] = f(lanes[i], lanes[i + half]);
        }
        half /= 2;
    }
    lanes[0]
    // end of exercise
}

/// Run `f(lane, element)` over `x` with element `i` going to lane `i % 16`: the loop below every
/// reduction here.
#[inline(always)]
pub fn accumulate<T: Copy, A: Copy>(x: &[T], start: A, f: impl Fn(A, T) -> A) -> [A; LANES] {
    // exercise l1.lanes
    let mut lanes = [start; LANES];
    let (chunks, rest) = x.as_chunks::<LANES>();
    for chunk in chunks {
        for (lane, v) in lanes.iter_mut().zip(chunk) {
            *lane = f(*lane, *v);
        }
    }
    for (lane, v) in lanes.iter_mut().zip(rest) {
        *lane = f(*lane, *v);
    }
    lanes
    // end of exercise
}

/// The sum of `x`.
#[inline(always)]
pub fn sum(x: &[f32]) -> f32 {
    sum_lanes(accumulate(x, 0.0, |acc, v| acc + v))
}

/// The sum of the squares of `x`.
#[inline(always)]
pub(crate) fn sum_squares<const FMA: bool>(x: &[f32]) -> f32 {
    // exercise l1.lanes
    sum_lanes(accumulate(x, 0.0, |acc, v| mul_add::<FMA>(v, v, acc)))
    // end of exercise
}

/// The sum of `(v - mean)^2`.
#[inline(always)]
pub(crate) fn sum_squared_deviations<const FMA: bool>(x: &[f32], mean: f32) -> f32 {
    sum_lanes(accumulate(x, 0.0, |acc, v| mul_add::<FMA>(v - mean, v - mean, acc)))
}

/// The largest element, NaN passed over; -inf when there is none.
#[inline(always)]
pub fn max_of(x: &[f32]) -> f32 {
    // exercise l1.lanes
    fold_lanes(accumulate(x, f32::NEG_INFINITY, |m, v| max(v, m)), |a, b| max(b, a))
    // end of exercise
}

/// `e^x` over the whole range of f32, within 1.5 ulp (2 where multiply-adds are not fused).
///
/// `x = n ln 2 + r` with `|r| <= ln 2 / 2`; `e^r` is its Taylor polynomial, whose first omitted
/// term, `r^8 / 8!`, is below a tenth of an ulp there; `2^n` goes straight into the exponent bits,
/// in two factors, so that results too small for a normal number round correctly and those too
/// large become infinite. Exact at both ends and in the middle: `exp(-inf) = 0`, `exp(0) = 1`,
/// `exp(inf) = inf`; NaN stays NaN.
///
/// The scheme is the one of Cody and Waite, "Software Manual for the Elementary Functions" (1980).
#[inline(always)]
pub fn exp<const FMA: bool>(x: f32) -> f32 {
    // exercise l1.exp
    // Beyond these e^x is 0 or infinite anyway. A NaN fails both comparisons and goes through.
    let x = if x < -104.0 { -104.0 } else { x };
    let x = if x > 89.0 { 89.0 } else { x };
    // Adding 1.5 * 2^23 leaves no bits for a fraction: the sum is rounded to an integer, which
    // then stands in its low mantissa bits.
    const ROUND: f32 = 12_582_912.0;
    let shifted = mul_add::<FMA>(x, std::f32::consts::LOG2_E, ROUND);
    let n = shifted - ROUND;
    // ln 2 in two pieces. The first has so few bits (nine) that n times it is exact.
    const LN2_HI: f32 = 355.0 / 512.0;
    const LN2_LO: f32 = -2.121_944_4e-4;
    let r = mul_add::<FMA>(n, -LN2_LO, mul_add::<FMA>(n, -LN2_HI, x));
    let mut p = 1.0 / 5040.0;
    p = mul_add::<FMA>(p, r, 1.0 / 720.0);
    p = mul_add::<FMA>(p, r, 1.0 / 120.0);
    p = mul_add::<FMA>(p, r, 1.0 / 24.0);
    p = mul_add::<FMA>(p, r, 1.0 / 6.0);
    p = mul_add::<FMA>(p, r, 0.5);
    // 1 + (r + r^2 p): the small terms first, or their last bits are lost.
    let p = 1.0 + mul_add::<FMA>(r * r, p, r);
    let n = (shifted.to_bits() as i32).wrapping_sub(ROUND.to_bits() as i32);
    let half = n >> 1;
    p * power_of_two(half) * power_of_two(n.wrapping_sub(half))
    // end of exercise
}

/// `2^n` for `-126 <= n <= 127`; anything else gives some number, not undefined behaviour.
#[inline(always)]
fn power_of_two(n: i32) -> f32 {
    // exercise l1.exp
    f32::from_bits((n.wrapping_add(127) as u32) << 23)
    // end of exercise
}

/// Nearest bf16, ties to even; NaN stays NaN (quiet, with its sign).
#[inline(always)]
pub(crate) fn round_bf16(v: f32) -> bf16 {
    // exercise l1.lanes
    let bits = v.to_bits();
    // Half an ulp of bf16, less one when the kept part is even: carries upwards where it must.
    let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16;
    let nan = (bits >> 16) | 0x40;
    bf16::from_bits(if v.is_nan() { nan } else { rounded } as u16)
    // end of exercise
}

/// Half precision to single precision; exact for every input (a NaN stays a NaN). Without branches and without a
/// question for the processor, so that a compiler makes vectors of it everywhere.
///
/// Both formats are `sign | exponent | mantissa`. Shifting exponent and mantissa into f32's places leaves an exponent
/// that is too small by the difference of the two biases, 127 - 15 = 112: a multiplication by 2^112 puts it right, and
/// normalises subnormals for free. Only infinity and NaN (half's all-ones exponent) need their exponent filled up.
#[inline(always)]
pub fn f16_to_f32(half: u16) -> f32 {
    const TWO_POW_112: f32 = f32::from_bits((127 + 112) << 23);
    let magnitude = f32::from_bits(u32::from(half & 0x7fff) << 13) * TWO_POW_112;
    let special = if half & 0x7c00 == 0x7c00 { 0x7f80_0000 } else { 0 };
    let sign = u32::from(half & 0x8000) << 16;
    f32::from_bits(magnitude.to_bits() | special | sign)
}

/// An element that an op computes as f32 and stores rounded.
pub(crate) trait Narrow: Element {
    /// The nearest value of this type.
    fn narrow(v: f32) -> Self;
}

impl Narrow for f32 {
    #[inline(always)]
    fn narrow(v: f32) -> Self {
        v
    }
}

impl Narrow for bf16 {
    #[inline(always)]
    fn narrow(v: f32) -> Self {
        round_bf16(v)
    }
}

impl Narrow for f16 {
    #[inline(always)]
    fn narrow(v: f32) -> Self {
        f16::from_f32(v)
    }
}

/// An element that an op reads as f32. Exact.
pub(crate) trait Widen: Element {
    /// The same value.
    fn widen(self) -> f32;
}

impl Widen for f32 {
    #[inline(always)]
    fn widen(self) -> f32 {
        self
    }
}

impl Widen for bf16 {
    #[inline(always)]
    fn widen(self) -> f32 {
        // exercise l1.lanes
        f32::from_bits(u32::from(self.to_bits()) << 16)
        // end of exercise
    }
}

impl Widen for f16 {
    #[inline(always)]
    fn widen(self) -> f32 {
        self.to_f32()
    }
}

#[cfg(test)]
mod tests;
