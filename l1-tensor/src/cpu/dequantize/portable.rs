//! Dequantization in plain Rust, for any processor: the compiler makes vectors of it where it may.

use super::{Lanes, of_formats};
use crate::cpu::lanes::{f16_to_f32, round_bf16};
use crate::weight::{Levels, Line, STEP, Scale, Shape};

const LANES: usize = 16;

/// Lanes of an array.
struct Plain;

/// Codes of a half vector: four bits, and those above. Codes of 8 bits are read one step after the other.
#[derive(Clone, Copy)]
pub(super) struct Codes {
    low: [u32; LANES],
    upper: [u32; LANES],
    bytes: *const u8,
}

impl Lanes for Plain {
    type F = [f32; LANES];
    type Codes = Codes;

    #[inline(always)]
    unsafe fn halves(at: *const u8) -> [f32; LANES] {
        // SAFETY: the caller's promise.
        let bytes = unsafe { at.cast::<[[u8; 2]; LANES]>().read() };
        bytes.map(|half| f16_to_f32(u16::from_le_bytes(half)))
    }

    #[inline(always)]
    unsafe fn bytes(at: *const u8, signed: bool) -> [f32; LANES] {
        // SAFETY: the caller's promise.
        let bytes = unsafe { at.cast::<[u8; LANES]>().read() };
        bytes.map(|b| if signed { f32::from(b.cast_signed()) } else { f32::from(b) })
    }

    #[inline(always)]
    unsafe fn small_floats(at: *const u8) -> [f32; LANES] {
        // SAFETY: the caller's promise.
        let bytes = unsafe { at.cast::<[u8; LANES]>().read() };
        bytes.map(|byte| Scale::E4m3.of_byte(byte))
    }

    #[inline(always)]
    unsafe fn powers(at: *const u8) -> [f32; LANES] {
        // SAFETY: the caller's promise.
        let bytes = unsafe { at.cast::<[u8; LANES]>().read() };
        bytes.map(|byte| Scale::E8m0.of_byte(byte))
    }

    #[inline(always)]
    unsafe fn mul(a: [f32; LANES], b: [f32; LANES]) -> [f32; LANES] {
        std::array::from_fn(|i| a[i] * b[i])
    }

    #[inline(always)]
    unsafe fn neg(a: [f32; LANES]) -> [f32; LANES] {
        a.map(|x| -x)
    }

    #[inline(always)]
    unsafe fn mul_add(a: [f32; LANES], b: [f32; LANES], c: [f32; LANES]) -> [f32; LANES] {
        std::array::from_fn(|i| a[i] * b[i] + c[i])
    }

    #[inline(always)]
    unsafe fn twice(a: [f32; LANES], half: usize) -> [f32; LANES] {
        std::array::from_fn(|i| a[8 * half + i / 2])
    }

    #[inline(always)]
    unsafe fn codes(shape: Shape, step: *const u8, half: usize) -> Codes {
        let mut codes = Codes { low: [0; LANES], upper: [0; LANES], bytes: step };
        // SAFETY: the caller's promise; lines of four bits are in front of those of the upper bits.
        unsafe {
            match shape.bits {
                8 => codes.bytes = step.add(half * STEP / 2 * LANES),
                _ => {
                    codes.low = step.add(64 * half).cast::<[u32; LANES]>().read().map(u32::from_le)
                }
            }
            match shape.bits {
                5 => {
                    codes.upper =
                        step.add(256 + 16 * half).cast::<[u8; LANES]>().read().map(u32::from)
                }
                6 => {
                    let upper = step.add(256 + 32 * half).cast::<[u16; LANES]>().read();
                    codes.upper = upper.map(|bits| u32::from(u16::from_le(bits)));
                }
                _ => {}
            }
        }
        codes
    }

    #[inline(always)]
    unsafe fn code(shape: Shape, codes: Codes, t: usize) -> [f32; LANES] {
        if shape.bits == 8 {
            // SAFETY: the caller's promise.
            return unsafe { Self::bytes(codes.bytes.add(LANES * t), true) };
        }
        let (upper, t) = (shape.bits - 4, t as u32);
        if shape.levels != Levels::Integers {
            let table = shape.levels.table();
            return codes.low.map(|low| table[(low >> (4 * t) & 15) as usize]);
        }
        std::array::from_fn(|i| {
            let low = codes.low[i] >> (4 * t) & 15;
            let high = codes.upper[i] >> (upper as u32 * t) & ((1 << upper) - 1);
            ((low | high << 4).cast_signed() - shape.zero) as f32
        })
    }

    #[inline(always)]
    unsafe fn store(_exact: bool, low: [f32; LANES], high: [f32; LANES], out: *mut Line) {
        let pair = |of: &[f32; LANES], i: usize| {
            let bits = |x: f32| u32::from(round_bf16(x).to_bits());
            bits(of[2 * i]) | bits(of[2 * i + 1]) << 16
        };
        let line = std::array::from_fn(|i| if i < 8 { pair(&low, i) } else { pair(&high, i - 8) });
        // SAFETY: the caller's promise.
        unsafe { out.write(Line(line)) }
    }
}

of_formats!(any, Plain);
