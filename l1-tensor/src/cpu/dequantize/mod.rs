//! From the codes of a panel to the bf16 pairs that the matmul kernels read.
//!
//! A step is 16 inputs by 16 outputs of a vector. Each lane of a register holds eight codes of one output, every second
//! input: shift by `t` codes, and the bottom of each lane is input `2 t + parity`. So one shift, one conversion (for
//! codes below 32 a lookup in a register) and one multiplication or fused multiply-add make sixteen weights. Two such
//! registers, outputs 0 to 7 and 8 to 15 with both parities each, round to one line of pairs.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod portable;

use std::mem::MaybeUninit;

use super::Isa;
use super::matmul::prefetch;
use crate::weight::{BlockFormat, BlockPanel, Line, STEP, Scale, Shape};

/// Prefetch distance, in bytes.
const AHEAD: usize = 4096;

/// Prefetches `n` lines, this far ahead of line `first`.
#[inline(always)]
fn prefetch_lines(stored: *const u8, first: usize, n: usize) {
    for line in first..first + n {
        prefetch(stored.wrapping_add(64 * line + AHEAD).cast());
    }
}

/// Dequantizes `units` units of a format at `stored` into lines of pairs at `out`.
type Units = unsafe fn(stored: *const Line, units: usize, out: *mut Line);

/// Turns panels into lines of pairs, for one instruction set.
#[derive(Clone, Copy)]
pub(crate) struct Dequantizer(fn(BlockFormat) -> Units);

impl Dequantizer {
    /// The dequantizer of this instruction set.
    pub(crate) fn of(isa: Isa) -> Self {
        match isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Amx | Isa::Avx512Bf16 if isa.is_available() => Self(avx512::with_bf16),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 if isa.is_available() => Self(avx512::without_bf16),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 if isa.is_available() => Self(avx2::any),
            _ => Self(portable::any),
        }
    }

    /// The same for the format of this panel.
    pub(crate) fn panel(self, panel: BlockPanel<'_>) -> PanelDequantizer<'_> {
        PanelDequantizer { units: (self.0)(panel.format), panel }
    }
}

/// A panel, and what turns it into lines of pairs.
pub(crate) struct PanelDequantizer<'a> {
    units: Units,
    panel: BlockPanel<'a>,
}

impl PanelDequantizer<'_> {
    /// Dequantizes inputs `from..from + n`, whole units, into `out`: two lines for each pair of inputs.
    pub(crate) fn dequantize<'a>(
        &self,
        from: usize,
        n: usize,
        out: &'a mut [MaybeUninit<Line>],
    ) -> &'a [Line] {
        let shape = self.panel.format.shape();
        let (unit, lines) = (shape.unit_len(), shape.unit_lines());
        assert!(from.is_multiple_of(unit) && n.is_multiple_of(unit), "{from}, {n} in {unit}");
        let stored = &self.panel.lines[from / unit * lines..][..n / unit * lines];
        let out = &mut out[..n];
        let first = out.as_mut_ptr().cast::<Line>();
        // SAFETY: `Dequantizer::of` has asked for the instruction set; both slices have been checked to hold these
        // units, and each input of a unit makes a line.
        unsafe {
            (self.units)(stored.as_ptr(), n / unit, first);
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

/// Dequantizes units of one shape.
///
/// # Safety
/// `units` units must be readable at `stored`, and as many lines as they have inputs writable at `out`; the processor
/// must run the instruction set.
#[inline(always)]
unsafe fn dequantize_units<L: Lanes>(
    shape: Shape,
    stored: *const Line,
    units: usize,
    out: *mut Line,
) {
    for unit in 0..units {
        // SAFETY: the caller's promise: offsets are those of lines of a unit, and of the lines of its inputs.
        unsafe {
            let stored = stored.add(unit * shape.unit_lines()).cast::<u8>();
            let out = out.add(unit * shape.unit_len());
            prefetch_lines(stored, 0, shape.code_line());
            for vector in 0..2 {
                // Without a line of `d` this reads scales of groups, and is not used.
                let d = L::halves(stored.add(32 * vector));
                let min = if shape.min { L::halves(stored.add(64 + 32 * vector)) } else { d };
                for group in 0..shape.groups {
                    let (mut scale, mut offset) = (d, min);
                    if shape.nested && shape.scale != Scale::F16 {
                        let at = stored.add(64 * shape.scale_line() + 32 * group + 16 * vector);
                        scale = match shape.scale {
                            Scale::E4m3 => L::small_floats(at),
                            _ => L::powers(at),
                        };
                    } else if shape.nested {
                        let at = 32 * group + 16 * vector;
                        let nested = L::bytes(stored.add(64 * shape.scale_line() + at), !shape.min);
                        scale = L::mul(d, nested);
                        if shape.min {
                            let nested = L::bytes(stored.add(64 * shape.min_line() + at), false);
                            offset = L::neg(L::mul(min, nested));
                        }
                    }
                    let scales = [L::twice(scale, 0), L::twice(scale, 1)];
                    let offsets = [L::twice(offset, 0), L::twice(offset, 1)];
                    for step in 0..shape.group / STEP {
                        let step = group * (shape.group / STEP) + step;
                        let line = shape.code_line() + step * shape.bits;
                        if vector == 0 {
                            prefetch_lines(stored, line, shape.bits);
                        }
                        let out = out.add(step * STEP + vector);
                        dequantize_step::<L>(
                            shape,
                            stored.add(64 * line),
                            vector,
                            scales,
                            offsets,
                            out,
                        );
                    }
                }
            }
        }
    }
}

/// Dequantizes 16 inputs by a vector of outputs.
///
/// # Safety
/// As [`dequantize_units`]: the lines of the step are at `step`, and every second line at `out` is written.
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
        pub(super) fn $name(format: $crate::weight::BlockFormat) -> super::Units {
            use $crate::weight::{BlockFormat, Line};
            macro_rules! of {
                ($of:ident) => {{
                    $(#[target_feature(enable = $features)])?
                    unsafe fn units(stored: *const Line, units: usize, out: *mut Line) {
                        let shape = const { BlockFormat::$of.shape() };
                        // SAFETY: the caller's promise.
                        unsafe { super::dequantize_units::<$lanes>(shape, stored, units, out) }
                    }
                    units
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
