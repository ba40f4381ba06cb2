//! Dequantization along K: a line is 32 inputs of one output.
//!
//! All weights of an output in a block have one scale and one minimum, so its codes of four bits stand for sixteen
//! weights. They are computed and rounded once, two outputs in a register, and a lookup by 32 codes makes the line:
//! half the roundings of lines of pairs, and one shift for 32 codes in place of 16.
//!
//! A unit has the codes of an output in 8 bytes for each step of 16 inputs: two lanes, every second input in each.
//!
//! ```text
//! register     8 bytes of the first step, four times     8 bytes of the second step, four times
//! words        inputs 0 1 2 3 | 4 5 6 7 | ... 15         16 17 18 19 | ... | 28 29 30 31       a byte for each code
//! ```

use std::arch::asm;
use std::arch::x86_64::*;
use std::mem::MaybeUninit;

use super::avx512::{Avx512, numbers};
use super::{Inputs, Lanes, PIECE, code_lines, groups, scales};
use crate::weight::{BlockFormat, Line, PANEL, STEP, Shape};

/// Lanes of all functions here.
type L = Avx512<true>;

/// Whether the processor has AVX-512 VBMI, beyond what AMX needs.
pub(super) fn are_available() -> bool {
    is_x86_feature_detected!("avx512vbmi")
}

/// The function of a format: those of four bits whose scales are for 32 inputs.
pub(super) fn with_vbmi(format: BlockFormat) -> Option<Inputs> {
    macro_rules! of {
        ($($of:ident)*) => {
            match format {
                $(BlockFormat::$of => {
                    #[target_feature(
                        enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx512vbmi,avx2,fma"
                    )]
                    unsafe fn inputs(panel: *const Line, from: usize, n: usize, out: *mut Line) {
                        let shape = const {
                            let shape = BlockFormat::$of.shape();
                            assert!(shape.bits == 4 && shape.group == PIECE && PIECE == PANEL);
                            shape
                        };
                        // SAFETY: the caller's promise.
                        unsafe { dequantize_inputs(shape, panel, from, n, out) }
                    }
                    Some(inputs)
                })*
                _ => None,
            }
        };
    }
    of!(Q4_0 Q4_1 Q4_K IQ4_NL MXFP4)
}

/// Memory for the scales of 32 outputs, and their offsets.
#[repr(align(64))]
struct Scales([MaybeUninit<f32>; 2 * PANEL]);

/// Where a byte that begins with a code is in the 64 bits of a step, for the words of a register: 16 bits a word, of
/// which the upper byte is not used.
static SHIFTS: [i64; 8] = {
    let mut shifts = [0; 8];
    let mut input = 0;
    while input < PIECE {
        let (parity, code) = (input % 2, input % STEP / 2);
        let from = 32 * parity + 4 * code;
        shifts[input / 4] |= (from as i64) << (16 * (input % 4));
        input += 1;
    }
    shifts
};

/// Dequantizes inputs `from..from + n` of a panel, whole groups, into 32 lines for each group.
///
/// # Safety
/// The units of these inputs must be readable from `panel` on, and `n` lines writable at `out`; the processor must have
/// AVX-512 with BF16 and VBMI.
#[inline(always)]
unsafe fn dequantize_inputs(
    shape: Shape,
    panel: *const Line,
    from: usize,
    n: usize,
    out: *mut Line,
) {
    for (unit, group, out) in groups(shape, panel, from, n, out) {
        // SAFETY: the caller's promise for the unit and for the lines: as many as a group has inputs.
        unsafe { dequantize_group(shape, unit, group, out) };
    }
}

/// Dequantizes a group of a unit.
///
/// # Safety
/// As [`dequantize_inputs`].
#[inline(always)]
unsafe fn dequantize_group(shape: Shape, unit: *const u8, group: usize, out: *mut Line) {
    let lines = code_lines(shape, unit, group);
    let mut memory = Scales([const { MaybeUninit::uninit() }; 2 * PANEL]);
    let memory = memory.0.as_mut_ptr().cast::<f32>();
    // SAFETY: the caller's promise: offsets are those of lines of a unit. A step of four bits has as many words of 64
    // bits as there are outputs. Offsets are only read where they have been written.
    unsafe {
        for vector in 0..2 {
            let (scale, offset) = scales::<L>(shape, unit, group, vector);
            _mm512_store_ps(memory.add(16 * vector), scale);
            if shape.min {
                _mm512_store_ps(memory.add(PANEL + 16 * vector), offset);
            }
        }
        // The compiler must not know what is in memory. It would take scales from the registers that were stored, with
        // an instruction for each: a load that repeats a number costs none.
        asm!("/* {0} */", in(reg) memory, options(nostack, preserves_flags));
        let codes = unit.add(64 * lines);
        let second = _mm512_set1_epi16(16);
        for output in (0..PANEL).step_by(2) {
            // Sixteen weights of this output, and sixteen of the next. A lookup reads five bits of an index.
            let first = weights(shape, memory.add(output));
            let both = L::narrow(shape.is_exact(), first, weights(shape, memory.add(output + 1)));
            let index = _mm512_andnot_si512(second, bytes(codes.add(8 * output)));
            _mm512_store_si512(out.add(output).cast(), _mm512_permutexvar_epi16(index, both));
            let index = _mm512_or_si512(second, bytes(codes.add(8 * (output + 1))));
            _mm512_store_si512(out.add(output + 1).cast(), _mm512_permutexvar_epi16(index, both));
        }
    }
}

/// The weights that the codes of one output stand for.
///
/// # Safety
/// As [`dequantize_inputs`]; `scale` must be in [`Scales`].
#[inline(always)]
unsafe fn weights(shape: Shape, scale: *const f32) -> __m512 {
    // SAFETY: the caller's promise.
    unsafe {
        let numbers = _mm512_load_ps(numbers(shape));
        match shape.min {
            true => L::mul_add(_mm512_set1_ps(*scale), numbers, _mm512_set1_ps(*scale.add(PANEL))),
            false => L::mul(_mm512_set1_ps(*scale), numbers),
        }
    }
}

/// Words with the codes of one output in their lowest four bits. Those above mean nothing.
///
/// # Safety
/// As [`dequantize_inputs`]; `codes` must be those of the first step, and the second step's must be behind them.
#[inline(always)]
unsafe fn bytes(codes: *const u8) -> __m512i {
    // SAFETY: the caller's promise.
    unsafe {
        let first = _mm512_castsi128_si512(_mm_loadl_epi64(codes.cast()));
        let second = _mm512_castsi128_si512(_mm_loadl_epi64(codes.add(8 * PANEL).cast()));
        let steps = _mm512_setr_epi64(0, 0, 0, 0, 8, 8, 8, 8);
        let both = _mm512_permutex2var_epi64(first, steps, second);
        _mm512_multishift_epi64_epi8(_mm512_loadu_si512(SHIFTS.as_ptr().cast()), both)
    }
}
