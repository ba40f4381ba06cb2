//! From the codes of a panel to the bf16 pairs that the matmul kernels read.
//!
//! A step is 16 inputs by 16 outputs of a vector. Each lane of a register holds eight codes of one output, every second
//! input: shift by `t` codes, and the bottom of each lane is input `2 t + parity`. So one shift, one conversion (for
//! codes below 32 a lookup in a register) and one multiplication or fused multiply-add make sixteen weights. Two such
//! registers, outputs 0 to 7 and 8 to 15 with both parities each, round to one line of pairs.
//!
//! `outputs` makes lines of another order, one output each, for the kernel that multiplies few rows in tiles.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "x86_64")]
mod outputs;
mod portable;

use std::mem::MaybeUninit;

use super::Isa;
use super::matmul::prefetch;
use crate::weight::{BlockFormat, BlockPanel, Line, STEP, Scale, Shape};

/// Prefetch distance, in bytes.
const AHEAD: usize = 4096;

/// Number of inputs that are dequantized at least: whole groups of every format, and the same part of every unit.
pub(in crate::cpu) const PIECE: usize = 32;

/// Prefetches `n` lines, this far ahead of line `first`.
#[inline(always)]
fn prefetch_lines(stored: *const u8, first: usize, n: usize) {
    for line in first..first + n {
        prefetch(stored.wrapping_add(64 * line + AHEAD).cast());
    }
}

/// Dequantizes inputs `from..from + n` of a panel in one format, whose lines begin at `panel`, into lines of pairs at
/// `out`.
type Inputs = unsafe fn(panel: *const Line, from: usize, n: usize, out: *mut Line);

/// Turns panels into lines, for one instruction set.
#[derive(Clone, Copy)]
pub(crate) struct Dequantizer {
    pairs: fn(BlockFormat) -> Inputs,
    /// The same, with a line for each output of each [`PIECE`] of inputs. Not for every format.
    outputs: fn(BlockFormat) -> Option<Inputs>,
}

impl Dequantizer {
    /// The dequantizer of this instruction set.
    pub(crate) fn of(isa: Isa) -> Self {
        let outputs = match isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Amx if isa.is_available() && outputs::are_available() => outputs::with_vbmi,
            _ => |_| None,
        };
        let pairs = match isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Amx | Isa::Avx512Bf16 if isa.is_available() => avx512::with_bf16,
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 if isa.is_available() => avx512::without_bf16,
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 if isa.is_available() => avx2::any,
            _ => portable::any,
        };
        Self { pairs, outputs }
    }

    /// The same for the format of this panel.
    pub(crate) fn panel(self, panel: BlockPanel<'_>) -> PanelDequantizer<'_> {
        let (pairs, outputs) = ((self.pairs)(panel.format), (self.outputs)(panel.format));
        PanelDequantizer { pairs, outputs, panel }
    }
}

/// A panel, and what turns it into lines.
pub(crate) struct PanelDequantizer<'a> {
    pairs: Inputs,
    outputs: Option<Inputs>,
    panel: BlockPanel<'a>,
}

impl PanelDequantizer<'_> {
    /// Dequantizes inputs `from..from + n`, whole pieces, into `out`: two lines for each pair of inputs.
    #[inline(always)]
    pub(crate) fn dequantize<'a>(
        &self,
        from: usize,
        n: usize,
        out: &'a mut [MaybeUninit<Line>],
    ) -> &'a [Line] {
        self.lines(self.pairs, from, n, out)
    }

    /// Whether [`outputs`](Self::outputs) can dequantize the format.
    pub(in crate::cpu) fn has_outputs(&self) -> bool {
        self.outputs.is_some()
    }

    /// Dequantizes inputs `from..from + PIECE` into `out`: a line for each of the 32 outputs, its inputs in order. The
    /// panel must have [outputs](Self::has_outputs).
    #[inline(always)]
    pub(in crate::cpu) fn outputs<'a>(
        &self,
        from: usize,
        out: &'a mut [MaybeUninit<Line>],
    ) -> &'a [Line] {
        let Some(outputs) = self.outputs else { unreachable!("no outputs of this format") };
        self.lines(outputs, from, PIECE, out)
    }

    /// Dequantizes inputs by one of the functions: `n` inputs make `n` lines.
    #[inline(always)]
    fn lines<'a>(
        &self,
        inputs: Inputs,
        from: usize,
        n: usize,
        out: &'a mut [MaybeUninit<Line>],
    ) -> &'a [Line] {
        let shape = self.panel.format.shape();
        let (unit, lines) = (shape.unit_len(), shape.unit_lines());
        assert!(from.is_multiple_of(PIECE) && n.is_multiple_of(PIECE), "{from}, {n}");
        assert!((from + n).div_ceil(unit) * lines <= self.panel.lines.len(), "{from}, {n}");
        let out = &mut out[..n];
        let first = out.as_mut_ptr().cast::<Line>();
        // SAFETY: `Dequantizer::of` has asked for the instruction set; the panel has been checked to hold the units of
        // these inputs, and `n` inputs of 32 outputs make `n` lines.
        unsafe {
            inputs(self.panel.lines.as_ptr(), from, n, first);
            std::slice::from_raw_parts(first, n)
        }
    }
}

/// Sixteen lanes of one instruction set.
trait Lanes {
    /// Sixteen f32.
    type F: Copy;
    /// The codes of a half vector of a step.
    type Codes: Copy;

    /// Reads sixteen f16.
    ///
    /// # Safety
    /// They must be readable, and the processor must run the instruction set. So must it for all functions below.
    unsafe fn halves(at: *const u8) -> Self::F;

    /// Reads sixteen bytes, signed or not.
    ///
    /// # Safety
    /// They must be readable.
    unsafe fn bytes(at: *const u8, signed: bool) -> Self::F;

    /// Reads sixteen E4M3 that are numbers without a sign.
    ///
    /// # Safety
    /// They must be readable.
    unsafe fn small_floats(at: *const u8) -> Self::F;

    /// Reads sixteen powers of two, biased by 127, below the largest.
    ///
    /// # Safety
    /// They must be readable.
    unsafe fn powers(at: *const u8) -> Self::F;

    /// `a * b`.
    ///
    /// # Safety
    /// None beyond the instruction set.
    unsafe fn mul(a: Self::F, b: Self::F) -> Self::F;

    /// `-a`.
    ///
    /// # Safety
    /// None beyond the instruction set.
    unsafe fn neg(a: Self::F) -> Self::F;

    /// `a * b + c`, where `a * b` is exact.
    ///
    /// # Safety
    /// None beyond the instruction set.
    unsafe fn mul_add(a: Self::F, b: Self::F, c: Self::F) -> Self::F;

    /// Repeats each of lanes `8 half..8 half + 8`, in the order in which [`code`](Self::code) has them.
    ///
    /// # Safety
    /// None beyond the instruction set.
    unsafe fn twice(a: Self::F, half: usize) -> Self::F;

    /// Reads the codes of half vector `half` (0 to 3) of the step whose lines begin at `step`.
    ///
    /// # Safety
    /// The step must be readable.
    unsafe fn codes(shape: Shape, step: *const u8, half: usize) -> Self::Codes;

    /// Code `t` of each lane, less the one that stands for zero, or the level that it stands for.
    ///
    /// # Safety
    /// None beyond the instruction set.
    unsafe fn code(shape: Shape, codes: Self::Codes, t: usize) -> Self::F;

    /// Rounds two halves to bf16, and writes them as a line. `exact`: they are bf16 already, perhaps subnormal.
    ///
    /// # Safety
    /// `out` must be writable.
    unsafe fn store(exact: bool, low: Self::F, high: Self::F, out: *mut Line);
}

/// Dequantizes inputs `from..from + n` of a panel of one shape, whole groups.
///
/// # Safety
/// The units of these inputs must be readable from `panel` on, and `n` lines writable at `out`; the processor must run
/// the instruction set.
#[inline(always)]
unsafe fn dequantize_inputs<L: Lanes>(
    shape: Shape,
    panel: *const Line,
    from: usize,
    n: usize,
    out: *mut Line,
) {
    for (unit, group, out) in groups(shape, panel, from, n, out) {
        // SAFETY: the caller's promise for the unit and for the lines.
        unsafe { dequantize_group::<L>(shape, unit, group, out) };
    }
}

/// The groups of inputs `from..from + n` of a panel: the unit of each, its index there, and its first line at `out`.
#[inline(always)]
fn groups(
    shape: Shape,
    panel: *const Line,
    from: usize,
    n: usize,
    out: *mut Line,
) -> impl Iterator<Item = (*const u8, usize, *mut Line)> {
    let first = from / shape.group;
    (0..n / shape.group).map(move |i| {
        let (unit, group) = ((first + i) / shape.groups, (first + i) % shape.groups);
        let unit = panel.wrapping_add(unit * shape.unit_lines());
        (unit.cast(), group, out.wrapping_add(i * shape.group))
    })
}

/// Dequantizes a group of a unit.
///
/// # Safety
/// As [`dequantize_inputs`].
#[inline(always)]
unsafe fn dequantize_group<L: Lanes>(shape: Shape, unit: *const u8, group: usize, out: *mut Line) {
    let steps = shape.group / STEP;
    let lines = code_lines(shape, unit, group);
    // SAFETY: the caller's promise: offsets are those of lines of a unit, and of the lines of its inputs.
    unsafe {
        for vector in 0..2 {
            let (scale, offset) = scales::<L>(shape, unit, group, vector);
            let scales = [L::twice(scale, 0), L::twice(scale, 1)];
            let offsets = [L::twice(offset, 0), L::twice(offset, 1)];
            for step in 0..steps {
                let codes = unit.add(64 * (lines + step * shape.bits));
                let out = out.add(step * STEP + vector);
                dequantize_step::<L>(shape, codes, vector, scales, offsets, out);
            }
        }
    }
}

/// Index of the first line with codes of a group. Prefetches what corresponds to the group's lines further on.
#[inline(always)]
fn code_lines(shape: Shape, unit: *const u8, group: usize) -> usize {
    let n = shape.group / STEP * shape.bits;
    let lines = shape.code_line() + group * n;
    if group == 0 {
        prefetch_lines(unit, 0, shape.code_line());
    }
    prefetch_lines(unit, lines, n);
    lines
}

/// What the codes of a group are multiplied by, and what is added, for a vector of outputs.
///
/// # Safety
/// As [`dequantize_inputs`].
#[inline(always)]
unsafe fn scales<L: Lanes>(
    shape: Shape,
    unit: *const u8,
    group: usize,
    vector: usize,
) -> (L::F, L::F) {
    // SAFETY: the caller's promise: offsets are those of lines of a unit.
    unsafe {
        // Without a line of `d` this reads scales of groups, and is not used.
        let d = L::halves(unit.add(32 * vector));
        let min = if shape.min { L::halves(unit.add(64 + 32 * vector)) } else { d };
        let (mut scale, mut offset) = (d, min);
        let nested = 32 * group + 16 * vector;
        if shape.nested && shape.scale != Scale::F16 {
            let at = unit.add(64 * shape.scale_line() + nested);
            scale = match shape.scale {
                Scale::E4m3 => L::small_floats(at),
                _ => L::powers(at),
            };
        } else if shape.nested {
            let factor = L::bytes(unit.add(64 * shape.scale_line() + nested), !shape.min);
            scale = L::mul(d, factor);
            if shape.min {
                let factor = L::bytes(unit.add(64 * shape.min_line() + nested), false);
                offset = L::neg(L::mul(min, factor));
            }
        }
        (scale, offset)
    }
}

/// Dequantizes 16 inputs by a vector of outputs.
///
/// # Safety
/// As [`dequantize_inputs`]: the lines of the step are at `step`, and every second line at `out` is written.
#[inline(always)]
unsafe fn dequantize_step<L: Lanes>(
    shape: Shape,
    step: *const u8,
    vector: usize,
    scales: [L::F; 2],
    offsets: [L::F; 2],
    out: *mut Line,
) {
    // SAFETY: the caller's promise.
    unsafe {
        let codes = [L::codes(shape, step, 2 * vector), L::codes(shape, step, 2 * vector + 1)];
        // Macros in place of closures and loops: a closure would be compiled without the instruction set, and `t` is a
        // constant of each shift.
        macro_rules! weight {
            ($half:literal, $t:literal) => {{
                let code = L::code(shape, codes[$half], $t);
                // Without a minimum nothing is added: -0 + 0 would be +0.
                if shape.min {
                    L::mul_add(scales[$half], code, offsets[$half])
                } else {
                    L::mul(scales[$half], code)
                }
            }};
        }
        macro_rules! pairs {
            ($($t:literal)*) => {
                $(L::store(shape.is_exact(), weight!(0, $t), weight!(1, $t), out.add(2 * $t));)*
            };
        }
        pairs!(0 1 2 3 4 5 6 7);
    }
}

/// Functions for all formats by one implementor of [`Lanes`], compiled with these features.
macro_rules! of_formats {
    ($name:ident, $lanes:ty $(, $features:literal)?) => {
        /// The function of a format.
        pub(super) fn $name(format: $crate::weight::BlockFormat) -> super::Inputs {
            use $crate::weight::{BlockFormat, Line};
            macro_rules! of {
                ($of:ident) => {{
                    $(#[target_feature(enable = $features)])?
                    unsafe fn inputs(panel: *const Line, from: usize, n: usize, out: *mut Line) {
                        let shape = const { BlockFormat::$of.shape() };
                        // SAFETY: the caller's promise.
                        unsafe { super::dequantize_inputs::<$lanes>(shape, panel, from, n, out) }
                    }
                    inputs
                }};
            }
            match format {
                BlockFormat::Q8_0 => of!(Q8_0),
                BlockFormat::Q4_0 => of!(Q4_0),
                BlockFormat::Q4_1 => of!(Q4_1),
                BlockFormat::Q5_0 => of!(Q5_0),
                BlockFormat::Q5_1 => of!(Q5_1),
                BlockFormat::Q4_K => of!(Q4_K),
                BlockFormat::Q5_K => of!(Q5_K),
                BlockFormat::Q6_K => of!(Q6_K),
                BlockFormat::IQ4_NL => of!(IQ4_NL),
                BlockFormat::MXFP4 => of!(MXFP4),
                BlockFormat::NVFP4 => of!(NVFP4),
                BlockFormat::NVFP4_SPLIT => of!(NVFP4_SPLIT),
            }
        }
    };
}
use of_formats;
