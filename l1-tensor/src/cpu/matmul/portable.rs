//! The multiplication in plain Rust, for any processor.
//!
//! `f32::mul_add` is one instruction where the processor has it (every aarch64) and the compiler
//! may use it; elsewhere it is a call into the C library, slow but with the same bits. So a
//! processor without FMA computes the same result as the others, more slowly.

use std::marker::PhantomData;

use crate::cpu::lanes::PORTABLE_FMA;
use crate::weight::Line;

use super::activation::Activation;
use super::tile::{Dot, LANES, Tile, entry_points};
use super::{Blocks, Job, Lines};

pub(super) struct Portable<X>(PhantomData<X>);

impl<X: Activation> Dot for Portable<X> {
    type X = X;
    type Acc = [f32; LANES];
    type W = [u32; LANES];
    const ROWS: usize = 2;
    const FMA: bool = PORTABLE_FMA;

    #[inline(always)]
    unsafe fn zero() -> [f32; LANES] {
        [0.0; LANES]
    }

    #[inline(always)]
    unsafe fn sums(from: *const f32) -> [f32; LANES] {
        // SAFETY: the caller's promise.
        unsafe { from.cast::<[f32; LANES]>().read_unaligned() }
    }

    #[inline(always)]
    unsafe fn load(line: *const Line) -> [u32; LANES] {
        // SAFETY: the caller's promise.
        unsafe { (*line).0 }
    }

    #[inline(always)]
    unsafe fn pair(mut acc: [f32; LANES], x: *const X, w: [u32; LANES]) -> [f32; LANES] {
        // exercise l1.linear
        // SAFETY: the caller's promise.
        let (x0, x1) = unsafe { (X::widen(x), X::widen(x.add(1))) };
        for (acc, w) in acc.iter_mut().zip(w) {
            *acc = if X::ODD_FIRST {
                x0.mul_add(even(w), x1.mul_add(odd(w), *acc))
            } else {
                x1.mul_add(odd(w), x0.mul_add(even(w), *acc))
            };
        }
        acc
        // end of exercise
    }

    #[inline(always)]
    unsafe fn last(mut acc: [f32; LANES], x: *const X, w: [u32; LANES]) -> [f32; LANES] {
        // exercise l1.linear
        // SAFETY: the caller's promise.
        let x0 = unsafe { X::widen(x) };
        for (acc, w) in acc.iter_mut().zip(w) {
            if X::ODD_FIRST {
                *acc = 0f32.mul_add(odd(w), *acc);
            }
            *acc = x0.mul_add(even(w), *acc);
        }
        acc
        // end of exercise
    }

    #[inline(always)]
    unsafe fn store(acc: [f32; LANES], out: *mut f32) {
        // SAFETY: the caller's promise.
        unsafe { out.cast::<[f32; LANES]>().write_unaligned(acc) }
    }

    entry_points!(X);
}

fn even(w: u32) -> f32 {
    f32::from_bits(w << 16)
}

fn odd(w: u32) -> f32 {
    f32::from_bits(w & 0xffff_0000)
}
