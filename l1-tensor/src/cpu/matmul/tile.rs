//! The inner loop: a tile of a few rows by one panel, or by a span of it, summed in registers.

use half::bf16;

use crate::Element;
use crate::cpu::lanes::round_bf16;
use crate::weight::{Line, PANEL};

use super::{Blocks, Job, Lines};

/// Lanes of a vector: outputs that one line of a packed weight holds.
pub(super) const LANES: usize = 16;

/// Vectors in a panel.
const VECTORS: usize = PANEL / LANES;

/// Maximum number of rows that any instruction set keeps in registers at once.
pub(super) const MAX_ROWS: usize = 12;

/// Sums of `N` rows, `[row][output]`, as they leave the registers. They are on the stack of the
/// thread that computes them and stay in its cache.
#[repr(align(64))]
pub(super) struct Sums<const N: usize>(pub(super) [[f32; PANEL]; N]);

/// Multiplication by one instruction set: the only difference between kernels.
///
/// Every implementor must keep the rule that makes a matmul batch invariant: [`Dot::pair`] adds two
/// products to each lane, one fused multiply-add after the other, in an order that depends on the
/// element type alone.
pub(super) trait Dot: Sized {
    /// Type of an activation.
    type X: Element;
    /// Sixteen sums.
    type Acc: Copy;
    /// A line of weights, in the form that the multiplication reads.
    type W: Copy;
    /// Maximum number of rows of a tile: their sums, two vectors for each row, fit the registers.
    const ROWS: usize;
    /// Maximum number of rows for which the kernel issues no prefetches. Weights are then read so
    /// fast and evenly that the processor's own prefetcher keeps ahead, and more requests only
    /// disturb it.
    const UNAIDED_ROWS: usize = 0;
    /// Whether the epilogue may fuse a multiplication and an addition (see [`crate::cpu::lanes`]).
    const FMA: bool = true;

    /// Sixteen zeros.
    ///
    /// # Safety
    /// The processor must run this instruction set. So must it for all functions below.
    unsafe fn zero() -> Self::Acc;

    /// Reads sixteen sums.
    ///
    /// # Safety
    /// They must be readable.
    unsafe fn sums(from: *const f32) -> Self::Acc;

    /// Reads a line of weights, widened where necessary.
    ///
    /// # Safety
    /// `line` must be readable.
    unsafe fn load(line: *const Line) -> Self::W;

    /// Adds `x[0] * even weight` and `x[1] * odd weight` to each lane, in the type's order.
    ///
    /// # Safety
    /// Two elements must be readable at `x`.
    unsafe fn pair(acc: Self::Acc, x: *const Self::X, w: Self::W) -> Self::Acc;

    /// Adds the half pair at the end of an odd K, which has only `x[0]`.
    ///
    /// # Safety
    /// One element must be readable at `x`.
    unsafe fn last(acc: Self::Acc, x: *const Self::X, w: Self::W) -> Self::Acc;

    /// Writes the sums.
    ///
    /// # Safety
    /// `out` must have room for sixteen.
    unsafe fn store(acc: Self::Acc, out: *mut f32);

    /// Rounds sixteen values to bf16, to nearest even; NaN stays NaN.
    ///
    /// # Safety
    /// None beyond the instruction set.
    #[inline(always)]
    unsafe fn round(y: [f32; LANES]) -> [bf16; LANES] {
        y.map(round_bf16)
    }

    // The generic code below and in `super`, compiled for this instruction set: see
    // [`entry_points!`].

    /// [`tile_body`].
    ///
    /// # Safety
    /// See there.
    unsafe fn tile<const M: usize>(args: &Tile<'_, Self::X>, sums: &mut [[f32; PANEL]]);

    /// [`super::sweep`].
    ///
    /// # Safety
    /// See there.
    unsafe fn chunk(job: &Job<'_, Self::X>, lines: Lines<'_>, chunk: usize);

    /// [`super::blocks::sweep`].
    ///
    /// # Safety
    /// See there.
    unsafe fn blocks(job: &Job<'_, Self::X>, blocks: Blocks<'_>, chunk: usize);

    /// [`peak_body`].
    ///
    /// # Safety
    /// See there.
    unsafe fn peak(rounds: usize) -> usize;
}

/// Functions of a [`Dot`] with the same text for every instruction set, each compiled with its
/// features. They call only `#[inline(always)]` functions, which are compiled with the features
/// too.
macro_rules! entry_points {
    ($x:ty $(, $features:literal)?) => {
        $(#[target_feature(enable = $features)])?
        unsafe fn tile<const M: usize>(args: &Tile<'_, $x>, sums: &mut [[f32; $crate::weight::PANEL]]) {
            // SAFETY: the caller's promise.
            unsafe { $crate::cpu::matmul::tile::tile_body::<Self, M>(args, sums) }
        }

        $(#[target_feature(enable = $features)])?
        unsafe fn chunk(job: &Job<'_, $x>, lines: Lines<'_>, chunk: usize) {
            // SAFETY: the caller's promise.
            unsafe { $crate::cpu::matmul::sweep::<Self>(job, lines, chunk) }
        }

        $(#[target_feature(enable = $features)])?
        unsafe fn blocks(job: &Job<'_, $x>, blocks: Blocks<'_>, chunk: usize) {
            // SAFETY: the caller's promise.
            unsafe { $crate::cpu::matmul::blocks::sweep::<Self>(job, blocks, chunk) }
        }

        $(#[target_feature(enable = $features)])?
        unsafe fn peak(rounds: usize) -> usize {
            // SAFETY: the caller's promise.
            unsafe { $crate::cpu::matmul::tile::peak_body::<Self>(rounds) }
        }
    };
}
pub(super) use entry_points;

/// Inputs of a tile.
pub(super) struct Tile<'a, X> {
    /// First activation of the first row.
    pub(super) x: *const X,
    /// Elements from one row to the next.
    pub(super) stride: usize,
    /// Elements in a row.
    pub(super) k: usize,
    /// The panel.
    pub(super) panel: &'a [Line],
    /// Prefetch distance for weights, in lines.
    pub(super) ahead: usize,
}

/// Multiplies `M` rows by a panel, or by a span of it, and adds the products to `sums`: for each pair
/// along K, it loads the panel's two lines of weights once and uses them for all `M` rows. The `2 M`
/// accumulators stay in registers throughout.
///
/// (Two panels at once would give a single row more independent sums. But so few rows are bound by
/// memory, which is fastest along one straight run.)
///
/// # Safety
/// `M` rows of `k` elements must be readable at `x`, `stride` apart; `panel` must hold
/// `2 * ceil(k/2)` lines and `sums` `M` rows; the processor must run `D`'s instruction set.
#[inline(always)]
pub(super) unsafe fn tile_body<D: Dot, const M: usize>(
    args: &Tile<'_, D::X>,
    sums: &mut [[f32; PANEL]],
) {
    let &Tile { x, stride, k, panel, ahead } = args;
    debug_assert!(panel.len() >= VECTORS * k.div_ceil(2) && sums.len() >= M);
    let panel = panel.as_ptr();
    // SAFETY: the caller's promises. Lines `2 j + v` with `j < ceil(k/2)` lie within the panel;
    // `x` is read at `m * stride + i` with `m < M` and `i < k`; a prefetch may point anywhere, so
    // its address is computed without the promise of staying inside.
    unsafe {
        // exercise l1.linear
        let mut acc = [[D::zero(); VECTORS]; M];
        for (acc, sums) in acc.iter_mut().zip(&*sums) {
            *acc = [D::sums(sums.as_ptr()), D::sums(sums[LANES..].as_ptr())];
        }
        for j in 0..k / 2 {
            let line = panel.add(VECTORS * j);
            prefetch(line.wrapping_add(ahead));
            prefetch(line.wrapping_add(ahead + 1));
            let w = [D::load(line), D::load(line.add(1))];
            for (m, sums) in acc.iter_mut().enumerate() {
                let x = x.add(m * stride + 2 * j);
                for (sum, w) in sums.iter_mut().zip(w) {
                    *sum = D::pair(*sum, x, w);
                }
            }
        }
        if k % 2 == 1 {
            let line = panel.add(k - 1);
            let w = [D::load(line), D::load(line.add(1))];
            for (m, sums) in acc.iter_mut().enumerate() {
                for (sum, w) in sums.iter_mut().zip(w) {
                    *sum = D::last(*sum, x.add(m * stride + k - 1), w);
                }
            }
        }
        for (acc, sums) in acc.iter().zip(sums) {
            for (acc, sums) in acc.iter().zip(sums.chunks_exact_mut(LANES)) {
                D::store(*acc, sums.as_mut_ptr());
            }
        }
        // end of exercise
    }
}

/// Prefetches a line. A hint: any address is valid.
#[inline(always)]
pub(in crate::cpu) fn prefetch(line: *const Line) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch never faults.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(line.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = line;
}

/// Runs the tile for a number of rows known at run time, at most `D::ROWS`.
///
/// # Safety
/// As [`tile_body`], with `M = rows`.
#[inline(always)]
pub(super) unsafe fn run_tile<D: Dot>(
    rows: usize,
    args: &Tile<'_, D::X>,
    sums: &mut [[f32; PANEL]],
) {
    macro_rules! dispatch {
        ($($m:literal)*) => {
            match rows {
                // The constant condition keeps unused tiles from being compiled.
                $($m if $m <= D::ROWS => {
                    // SAFETY: the caller's promise.
                    unsafe { D::tile::<$m>(args, sums) }
                })*
                _ => unreachable!("{rows} rows do not fit a tile"),
            }
        };
    }
    dispatch!(1 2 3 4 5 6 7 8 9 10 11 12);
}

/// Multiplies without memory accesses, `rounds` times with as many sums as a tile has: the peak of
/// the multipliers. Returns the number of floating point operations.
///
/// # Safety
/// The processor must run `D`'s instruction set.
#[inline(always)]
pub(super) unsafe fn peak_body<D: Dot>(rounds: usize) -> usize {
    // Values that the compiler cannot know: two activations (zero in either type) and a line.
    let x = std::hint::black_box([0u64; 1]);
    let line = std::hint::black_box(Line([0x3f80_3f80; LANES]));
    let sums = 2 * D::ROWS;
    // SAFETY: eight bytes hold two activations of either type; `out` holds sixteen sums.
    unsafe {
        let w = D::load(&raw const line);
        let mut acc = [D::zero(); 2 * MAX_ROWS];
        for _ in 0..rounds {
            for acc in &mut acc[..sums] {
                *acc = D::pair(*acc, x.as_ptr().cast(), w);
            }
        }
        let mut out = [0.0f32; LANES];
        for acc in &acc[..sums] {
            D::store(*acc, out.as_mut_ptr());
            std::hint::black_box(&out);
        }
    }
    // Two products and two additions for each lane.
    rounds * sums * LANES * 4
}
