//! The product of a matmul: which kernel computes it, and over which rows of the weight.
//!
//! Weights in NVFP4 are read as they are by a kernel for few tokens. For others, some of their rows are expanded to
//! bf16 in scratch memory and multiplied as any bf16 weight, then the next ones: so the scratch has a limit, and the
//! sums are those of the expanded weight.

use std::sync::Arc;

use super::Arithmetic;
use crate::error::Result;
use crate::scratch::Purpose;
use crate::weights::{Factors, Matrix, Weights, part};
use crate::{Args, Float, Gpu, Launch, Mat, MatMut, Nvfp4};

/// Maximum number of tokens for the gemv kernels.
const FEW: usize = 16;

/// The same for f32 activations.
const FEW_F32: usize = 8;

/// Maximum size of rows that are expanded at once, in bytes: a matrix of 4096 by 4096, which stays in a large
/// second-level cache.
const EXPANDED: usize = 32 << 20;

/// Whether a gemv of bf16 activations computes this.
pub(super) fn is_few(x: &Mat<'_>, arithmetic: Arithmetic) -> bool {
    x.dtype == Float::Bf16 && arithmetic == Arithmetic::Fast && x.rows <= FEW
}

/// Whether a [`Product`] passes rows through scratch memory: then the caller has to be [`alone`](crate::scratch::alone).
pub(super) fn needs_scratch(x: &Mat<'_>, weight: &Weights<'_>, arithmetic: Arithmetic) -> bool {
    matches!(weight.matrix, Matrix::Nvfp4(_)) && !is_few(x, arithmetic)
}

/// A product of activations, whatever the weight.
#[derive(Clone, Copy)]
pub(super) struct Product<'a> {
    pub gpu: &'a Arc<Gpu>,
    /// The activations, `[tokens, k]`.
    pub x: Mat<'a>,
    /// Adds the product to the output, with this factor, instead of writing it.
    pub add: Option<f32>,
    pub arithmetic: Arithmetic,
}

impl Product<'_> {
    /// `out = x W^T`, or `out += add x W^T`. The shapes fit.
    pub(super) fn with(&self, weight: &Weights<'_>, out: MatMut<'_>) -> Result<()> {
        let factors = weight.factors;
        match weight.matrix {
            Matrix::Dense(w) => self.dense(w, factors, out),
            Matrix::Nvfp4(w) if is_few(&self.x, self.arithmetic) => {
                let name = if self.x.rows <= 8 { "gemv_nvfp4_8" } else { "gemv_nvfp4_16" };
                let launch = Launch::new("gemv_nvfp4", name, w.rows.div_ceil(16), 256);
                self.launch(launch, &weight.matrix, factors, &out)
            }
            Matrix::Nvfp4(w) => self.expanded(w, factors, out),
        }
    }

    /// With rows that are expanded to scratch memory, some at a time.
    fn expanded(
        &self,
        weight: Nvfp4<'_>,
        factors: Option<Factors<'_>>,
        mut out: MatMut<'_>,
    ) -> Result<()> {
        let gpu = self.gpu;
        let at_once = weight.rows.min(expanded_at_once(weight.width));
        let bytes = at_once * weight.width * Float::Bf16.size();
        let at = gpu.scratch(|scratch| scratch.region(gpu, Purpose::ExpandedRows, bytes))?;
        for first in (0..weight.rows).step_by(at_once) {
            let packed = weight.part(first, at_once);
            let rows = MatMut::at(at, Float::Bf16, packed.rows, packed.width);
            let args = Args::new().ptr(packed.ptr).int(packed.rows).int(packed.width).ptr(rows.ptr);
            let blocks = (packed.rows * packed.width / 8).div_ceil(256);
            // SAFETY: the region holds as many rows, which the kernel writes from the packed ones.
            unsafe { Launch::new("nvfp4", "dequantize_nvfp4", blocks, 256).enqueue(gpu, args) }?;
            let out = out.reborrow().columns(first, packed.rows);
            self.dense(rows.as_mat(), part(factors, first, packed.rows), out)?;
        }
        Ok(())
    }

    /// With a weight in bf16.
    fn dense(
        &self,
        weight: Mat<'_>,
        factors: Option<Factors<'_>>,
        mut out: MatMut<'_>,
    ) -> Result<()> {
        let fast = self.x.dtype == Float::Bf16 && self.arithmetic == Arithmetic::Fast;
        // A sum without terms: the library is not called for it.
        if !fast || self.x.rows <= FEW || self.x.width == 0 {
            return self.by_own(weight, factors, &out);
        }
        let Some(factors) = factors else {
            return self.by_library(weight, None, 1.0, &out);
        };
        // The library has one factor for a product.
        for (first, rows, factor) in factors.runs() {
            let out = out.reborrow().columns(first, rows);
            let own = part(Some(factors), first, rows);
            self.by_library(weight.part(first, rows), own, factor, &out)?;
        }
        Ok(())
    }

    /// By cuBLASLt, where it can do it; else by `gemm.cu`. All `factors` are `factor`.
    fn by_library(
        &self,
        weight: Mat<'_>,
        factors: Option<Factors<'_>>,
        factor: f32,
        out: &MatMut<'_>,
    ) -> Result<()> {
        let Self { gpu, x, add, .. } = *self;
        let scale = add.unwrap_or(1.0) * factor;
        if gpu.blas.linear(gpu, x, weight, scale, add.is_some(), out)? {
            return Ok(());
        }
        self.by_own(weight, factors, out)
    }

    /// By a kernel of this crate.
    fn by_own(
        &self,
        weight: Mat<'_>,
        factors: Option<Factors<'_>>,
        out: &MatMut<'_>,
    ) -> Result<()> {
        let x = &self.x;
        let launch = match x.dtype {
            Float::Bf16 if is_few(x, self.arithmetic) => {
                let name = if x.rows <= 8 { "gemv_8" } else { "gemv_16" };
                Launch::new("gemv", name, weight.rows.div_ceil(16), 256)
            }
            Float::Bf16 => gemm(x.rows, weight.rows, self.gpu.properties().multiprocessors),
            Float::F32 if self.arithmetic == Arithmetic::Fast && x.rows <= FEW_F32 => {
                Launch::new("gemv", "gemv_f32", weight.rows.div_ceil(8), 256)
            }
            Float::F32 => {
                let grid = [weight.rows.div_ceil(64), x.rows.div_ceil(64), 1];
                Launch::new("gemm", "gemm_f32", 0, 256).grid(grid)
            }
        };
        self.launch(launch, &Matrix::Dense(weight), factors, out)
    }

    /// Launches a kernel with the arguments that all of these have.
    fn launch(
        &self,
        launch: Launch,
        weight: &Matrix<'_>,
        factors: Option<Factors<'_>>,
        out: &MatMut<'_>,
    ) -> Result<()> {
        let args = operands(&self.x, weight)
            .ptr(out.ptr)
            .long(out.stride)
            .int(usize::from(out.dtype == Float::Bf16))
            .int(usize::from(self.add.is_some()))
            .float(self.add.unwrap_or(1.0))
            .ptr(factors.map_or(0, |factors| factors.ptr()));
        // SAFETY: the shapes fit; the kernels stay within them.
        unsafe { launch.enqueue(self.gpu, args) }
    }
}

/// Number of rows that are expanded at once: whole tiles of them.
fn expanded_at_once(width: usize) -> usize {
    let rows = EXPANDED / (width.max(1) * Float::Bf16.size());
    (rows / 128 * 128).max(128)
}

/// Arguments for what is multiplied; for bf16 activations also whether they, and the rows of a weight in bf16, can be
/// read 16 bytes at a time.
pub(super) fn operands(x: &Mat<'_>, weight: &Matrix<'_>) -> Args {
    let args = Args::new().ptr(x.ptr).long(x.stride).int(x.rows);
    let (args, aligned) = match weight {
        Matrix::Dense(w) => {
            (args.ptr(w.ptr).long(w.stride).int(w.rows).int(w.width), by_16_bytes(w))
        }
        Matrix::Nvfp4(w) => (args.ptr(w.ptr).int(w.rows).int(w.width), true),
    };
    match x.dtype {
        Float::Bf16 => args.int(usize::from(by_16_bytes(x) && aligned)),
        Float::F32 => args,
    }
}

/// Whether every row can be read 16 bytes at a time.
fn by_16_bytes(m: &Mat<'_>) -> bool {
    let whole = |elements: usize| elements.is_multiple_of(8);
    m.ptr.is_multiple_of(16) && whole(m.width) && (m.rows <= 1 || whole(m.stride))
}

/// Tile for a shape. It decides the time, but no bit of the result.
fn gemm(tokens: usize, rows: usize, multiprocessors: usize) -> Launch {
    let tiles = |m: usize, n: usize| tokens.div_ceil(m) * rows.div_ceil(n);
    let launch = |name, m, n, threads, shared| {
        Launch::new("gemm", name, tiles(m, n), threads).shared(shared)
    };
    if tokens <= 16 {
        launch("gemm_narrow", 16, 32, 64, 6 * (16 + 32) * 64 * 2)
    } else if tokens <= 64 || tiles(128, 128) < multiprocessors {
        // First enough blocks for the device, then large ones.
        launch("gemm_medium", 64, 64, 128, 4 * (64 + 64) * 32 * 2)
    } else {
        launch("gemm_large", 128, 128, 256, 4 * (128 + 128) * 32 * 2)
    }
}

#[cfg(test)]
mod tests {
    use super::{expanded_at_once, gemm};

    #[test]
    fn scratch_for_expanded_rows_has_a_limit() {
        assert_eq!([4096, 14_336, 1 << 20].map(expanded_at_once), [4096, 1152, 128]);
    }

    #[test]
    fn the_tile_fits_the_tokens_and_fills_the_device() {
        let name = |tokens, rows| gemm(tokens, rows, 132).name;
        assert_eq!(name(1, 4096), "gemm_narrow");
        assert_eq!(name(17, 4096), "gemm_medium");
        assert_eq!(name(512, 4096), "gemm_medium");
        assert_eq!(name(8192, 4096), "gemm_large");
        assert_eq!(gemm(130, 300, 1).grid, [2 * 3, 1, 1]);
    }
}
