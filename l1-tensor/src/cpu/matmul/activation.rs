//! The two element types of activations, and the order in which each multiplies a pair.

use half::bf16;

use crate::Element;

/// An activation that widens to f32 exactly.
pub(super) trait Activation: Element {
    /// Whether the odd element of a pair is added before the even one: the order of the bf16 dot
    /// product instruction. Plain f32 goes 0, 1, 2, ...
    const ODD_FIRST: bool;

    /// Returns the value as f32.
    ///
    /// # Safety
    /// `x` must be readable.
    unsafe fn widen(x: *const Self) -> f32;
}

impl Activation for f32 {
    const ODD_FIRST: bool = false;

    #[inline(always)]
    unsafe fn widen(x: *const f32) -> f32 {
        // SAFETY: the caller's promise.
        unsafe { *x }
    }
}

impl Activation for bf16 {
    const ODD_FIRST: bool = true;

    #[inline(always)]
    unsafe fn widen(x: *const bf16) -> f32 {
        // SAFETY: the caller's promise.
        f32::from_bits(u32::from(unsafe { *x }.to_bits()) << 16)
    }
}
