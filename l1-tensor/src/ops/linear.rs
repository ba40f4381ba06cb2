//! The linear layer: nearly all the time and nearly all the memory of a transformer.
//!
//! ```text
//! y[t, n] = sum over k of x[t, k] * w[n, k]  (+ bias[n])        x [T, K], w [N, K], y [T, N]
//! ```
//!
//! One call computes all tokens of a step: T is 1 when a single sequence decodes, the batch size when many
//! do, hundreds in a prefill. For small T the cost is reading the weights once from memory, at most 2 bytes for
//! every 2 T multiplications and additions; from a few dozen rows on it is the arithmetic. The kernel in
//! [`crate::cpu`] must be fast at both ends.
//!
//! **Why weights are packed.** [`Weight`] keeps sixteen outputs of the same input side by side
//! ([`PackedBf16`](crate::PackedBf16) draws it). One input, broadcast, meets sixteen weights, and
//! each lane of a vector register sums its own output. Memory is read in a straight line, and
//! nothing has to be added across lanes at the end.
//!
//! **Why the batch cannot show.** Floating point addition is not associative: a sum taken in
//! another order has other last bits, and after thirty layers another token. Most matmuls split K
//! differently for different shapes or thread counts, so a request's output depends on the other requests
//! of its batch (He, "Defeating Nondeterminism in LLM Inference", Thinking Machines Lab 2025).
//! Here each output has *one* accumulator that takes the products one after the other, K from
//! front to back, whatever T is. Threads split rows and columns, never K. It costs nothing: the
//! registers are filled with many outputs instead of many parts of one.
//!
//! The order, which [`mod@reference`] spells out: for f32 activations
//! `acc = fma(x[k], w[k], acc)` for k = 0, 1, 2, ..; for bf16 activations the pairs in turn, in
//! each the odd element first, because that is what the bf16 dot product of AVX-512 does (an odd K
//! gets a zero at its end). Then the factor of the row, if the weight is [scaled](Weight::scaled), then
//! the bias, each rounded, then the [`Epilogue`]. All instruction sets keep this
//! order and fuse every step, so they agree to the last bit, with two exceptions. The bf16
//! instructions read and write numbers below 2^-126 as zero. And the tiles of AMX add bf16
//! activations in blocks of 32, not all of it fused: also one order for every batch, but another one.

use crate::cpu::matmul::{After, Input, Kernels, Out, OutData, matmul};
use crate::{
    DType, Element, Error, Layout, LowRank, OpKind, Result, RowOrder, Runtime, TensorMut,
    TensorRef, Weight, WeightId, Work, bf16,
};

/// Operation on `y = x W^T + bias` before it is written: the next op of the network, computed while the sums
/// are still in the cache.
///
/// The `*Mul` variants need a weight in [`RowOrder::GateUp`]; with `gate, up` the two halves of `y`, they
/// give the same bits as [`Epilogue::Store`] followed by [`super::silu_mul`] or [`super::gelu_mul`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Epilogue {
    /// `out[T, N] = y`; f32 or bf16.
    Store,
    /// `out[T, N] += y`, the residual connection; f32.
    Add,
    /// `out[T, N/2] = silu(gate) * up` (SwiGLU); f32 or bf16.
    SiluMul,
    /// `out[T, N/2] = gelu(gate) * up`, GELU by its tanh approximation (GeGLU); f32 or bf16.
    GeluTanhMul,
    /// `out[T, N/2] = gelu(gate) * up`, GELU by the error function; f32 or bf16.
    GeluMul,
}

/// `out = epilogue(x W^T + bias)`.
///
/// * `x`: `[T, K]`, f32 or bf16. Its dtype is the precision: bf16 rows are multiplied by the bf16
///   dot product (the speed mode), f32 rows exactly as they are (the parity mode). Weights are
///   bf16 and sums f32 in both. Rows may lie apart, as columns of a wider tensor do.
/// * `w`: `[N, K]`.
/// * `bias`: f32 `[N]`, in the order of the logical rows.
/// * `out`: `[T, N]`, or `[T, N/2]` for an epilogue that folds gate and up; f32, or bf16 (rounded
///   to nearest even) where nothing is added to it.
///
/// A row of `out` is the same bits alone, in any batch, on any number of threads. Allocates
/// nothing.
///
/// # Errors
/// [`Error::ShapeMismatch`], [`Error::UnexpectedDType`] or [`Error::UnsupportedLayout`] before
/// anything is written; [`Error::BadParameter`] for a folding epilogue over plain rows.
///
/// # Example
/// ```
/// use l1_tensor::ops::{Epilogue, linear};
/// use l1_tensor::*;
///
/// let rt = Runtime::new(RuntimeOptions::cpu())?;
/// // y = x W^T with W = [[1, 2], [3, 4], [5, 6]], given row by row.
/// let rows = [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]];
/// let fill = |i: usize, out: &mut [f32]| -> Result<()> {
///     out.copy_from_slice(&rows[i]);
///     Ok(())
/// };
/// let w = Weight::Bf16(PackedBf16::pack(rt.pool(), 3, 2, RowOrder::Plain, &fill)?);
/// let x = Tensor::from_slice(&[10.0f32, 1.0], &[1, 2])?;
/// let mut y = Tensor::zeros(&[1, 3], DType::F32, rt.device())?;
/// linear(&rt, x.view(), &w, None, Epilogue::Store, y.view_mut())?;
/// assert_eq!(y.to_vec_f32()?, [12.0, 34.0, 56.0]);
/// # Ok::<(), Error>(())
/// ```
pub fn linear(
    rt: &Runtime,
    x: TensorRef<'_>,
    w: &Weight,
    bias: Option<TensorRef<'_>>,
    epilogue: Epilogue,
    out: TensorMut<'_>,
) -> Result<()> {
    let after = match epilogue {
        Epilogue::Store => After::Store,
        Epilogue::Add => After::Add,
        Epilogue::SiluMul => After::SiluMul,
        Epilogue::GeluTanhMul => After::GeluTanhMul,
        Epilogue::GeluMul => After::GeluMul,
    };
    let _timed =
        rt.time(|| (OpKind::Matmul(WeightId::of(w)), Work::matmul(leading(x.layout()), w)));
    run(rt, "linear", x, w, bias, after, out)
}

/// `out += scale * (x A^T) B^T`: the low-rank side term of a linear layer.
///
/// * `x`: `[T, K]`, f32 or bf16; `out`: f32 `[T, N]`, which holds the layer's own result already.
/// * `scratch`: `[T, r]` in `x`'s dtype, for `x A^T`; its contents afterwards mean nothing.
///
/// # Errors
/// As [`linear`].
pub fn linear_low_rank(
    rt: &Runtime,
    x: TensorRef<'_>,
    side: &LowRank,
    mut scratch: TensorMut<'_>,
    out: TensorMut<'_>,
) -> Result<()> {
    const OP: &str = "linear_low_rank";
    let _timed = rt.time(|| {
        let rows = leading(x.layout());
        (OpKind::LowRank, Work::matmul(rows, &side.a).and(Work::matmul(rows, &side.b)))
    });
    if scratch.dtype() != x.dtype() {
        return Err(Error::UnexpectedDType {
            op: OP,
            expected: "a scratch of the input's dtype",
            got: scratch.dtype(),
            layout: *scratch.layout(),
        });
    }
    // Checked before the first half runs, so that an error leaves everything as it was.
    check(OP, &x, &side.a, None, After::Store, &scratch)?;
    let scaled = After::AddScaled(side.scale);
    check(OP, &scratch.as_ref(), &side.b, None, scaled, &out)?;
    run(rt, OP, x, &side.a, None, After::Store, scratch.reborrow())?;
    run(rt, OP, scratch.as_ref(), &side.b, None, scaled, out)
}

fn run(
    rt: &Runtime,
    op: &'static str,
    x: TensorRef<'_>,
    w: &Weight,
    bias: Option<TensorRef<'_>>,
    after: After,
    out: TensorMut<'_>,
) -> Result<()> {
    check(op, &x, w, bias.as_ref(), after, &out)?;
    if rt.gpu().is_some() {
        return crate::gpu::linear::linear(rt, op, x, w, bias, after, out);
    }
    let bias = bias.map(|b| b.as_slice::<f32>(op)).transpose()?;
    match x.dtype() {
        DType::F32 => typed::<f32>(rt, op, x, w, bias, after, out),
        _ => typed::<bf16>(rt, op, x, w, bias, after, out),
    }
}

fn typed<X: Element + Kernels>(
    rt: &Runtime,
    op: &'static str,
    x: TensorRef<'_>,
    w: &Weight,
    bias: Option<&[f32]>,
    after: After,
    out: TensorMut<'_>,
) -> Result<()> {
    let x = x.rows::<X>(op)?;
    let to = match out.dtype() {
        DType::F32 => {
            let mut rows = out.rows_mut::<f32>(op)?;
            Out { stride: rows.stride, data: OutData::F32(rows.as_mut_ptr()) }
        }
        _ => {
            let mut rows = out.rows_mut::<bf16>(op)?;
            Out { stride: rows.stride, data: OutData::Bf16(rows.as_mut_ptr()) }
        }
    };
    if x.n == 0 {
        return Ok(());
    }
    let w = w.on_host(op)?;
    let input = Input { data: x.row(0).as_ptr(), rows: x.n, stride: x.stride };
    // SAFETY: `check` has found `x.n` rows of `w.k()` elements, as many rows of output of the
    // length `after` makes, a bias of `w.n()`, as factors always are, an f32 output where it is added to, and gate-up
    // rows where they fold. The borrows in `x` and `out` last until the call returns.
    unsafe { matmul(rt.pool(), rt.isa(), input, w, bias, after, to) };
    Ok(())
}

/// Checks all arguments of a call.
fn check(
    op: &'static str,
    x: &TensorRef<'_>,
    w: &Weight,
    bias: Option<&TensorRef<'_>>,
    after: After,
    out: &TensorMut<'_>,
) -> Result<()> {
    let dtype = |expected, got, layout: &Layout| {
        Err(Error::UnexpectedDType { op, expected, got, layout: *layout })
    };
    let mismatch =
        |why, lhs: &Layout, rhs: Layout| Err(Error::ShapeMismatch { op, why, lhs: *lhs, rhs });
    if !matches!(x.dtype(), DType::F32 | DType::BF16) {
        return dtype("an input of F32 or BF16", x.dtype(), x.layout());
    }
    let adds = matches!(after, After::Add | After::AddScaled(_));
    match out.dtype() {
        DType::F32 => {}
        DType::BF16 if !adds => {}
        got if adds => return dtype("an F32 output to add to", got, out.layout()),
        got => return dtype("an output of F32 or BF16", got, out.layout()),
    }
    if after.folds() && w.order() != RowOrder::GateUp {
        let why = "this epilogue multiplies gates with ups: pack the weight with RowOrder::GateUp";
        return Err(Error::BadParameter { op, why: why.into() });
    }
    let weight = w.layout()?;
    if x.dims().last().copied().unwrap_or(1) != w.k() {
        return mismatch("the input's rows must be as long as the weight's", x.layout(), weight);
    }
    let width = if after.folds() { w.n() / 2 } else { w.n() };
    if out.dims().last().copied().unwrap_or(1) != width {
        let why = if after.folds() {
            "the output must have one column for each gate of the weight"
        } else {
            "the output must have one column for each row of the weight"
        };
        return mismatch(why, out.layout(), weight);
    }
    if leading(x.layout()) != leading(out.layout()) {
        return mismatch("input and output must have as many rows", x.layout(), *out.layout());
    }
    if let Some(bias) = bias {
        if bias.dtype() != DType::F32 {
            return dtype("an F32 bias", bias.dtype(), bias.layout());
        }
        if bias.dims() != [w.n()] {
            return mismatch("the bias must be [n]", bias.layout(), weight);
        }
    }
    Ok(())
}

/// Number of rows of a layout: the product of all dimensions but the last.
fn leading(layout: &Layout) -> usize {
    layout.dims().split_last().map_or(1, |(_, leading)| leading.iter().product())
}

/// The same sums as scalar loops: the reference that the kernels are tested against.
pub mod reference {
    use crate::bf16;

    /// `out[t, n] = sum_k x[t, k] w[n, k] + bias[n]` with f32 activations; all row-major.
    pub fn linear(
        x: &[f32],
        w: &[f32],
        bias: Option<&[f32]>,
        t: usize,
        k: usize,
        n: usize,
        out: &mut [f32],
    ) {
        // exercise l1.linear
        for row in 0..t {
            for col in 0..n {
                let mut acc = 0.0f32;
                for i in 0..k {
                    acc = x[row * k + i].mul_add(w[col * k + i], acc);
                }
                out[row * n + col] = bias.map_or(acc, |bias| acc + bias[col]);
            }
        }
        // end of exercise
    }

    /// The same with bf16 activations, in the order of `vdpbf16ps`: pair by pair, in each the odd
    /// element first. An odd K ends in a pair whose odd element is zero.
    pub fn linear_bf16(
        x: &[bf16],
        w: &[f32],
        bias: Option<&[f32]>,
        t: usize,
        k: usize,
        n: usize,
        out: &mut [f32],
    ) {
        // exercise l1.linear
        for row in 0..t {
            for col in 0..n {
                let product = |acc: f32, i: usize| match i < k {
                    true => x[row * k + i].to_f32().mul_add(w[col * k + i], acc),
                    false => acc + 0.0,
                };
                let mut acc = 0.0f32;
                for even in (0..k).step_by(2) {
                    acc = product(acc, even + 1);
                    acc = product(acc, even);
                }
                out[row * n + col] = bias.map_or(acc, |bias| acc + bias[col]);
            }
        }
        // end of exercise
    }

    /// `out[t, n] = out[t, n] * factors[n] + bias[n]`, in two steps that round: what follows the sums of a weight with
    /// factors. `out` holds the sums of a call without a bias.
    pub fn factors_and_bias(factors: &[f32], bias: Option<&[f32]>, out: &mut [f32]) {
        for row in out.chunks_exact_mut(factors.len()) {
            for (n, y) in row.iter_mut().enumerate() {
                *y *= factors[n];
                *y = bias.map_or(*y, |bias| *y + bias[n]);
            }
        }
    }

    /// The same in the order of `tdpbf16ps`, the tiles of AMX: blocks of 32 inputs, in each a chain of the even ones and
    /// a chain of the odd ones, which begin at zero.
    pub fn linear_bf16_tiles(
        x: &[bf16],
        w: &[f32],
        bias: Option<&[f32]>,
        t: usize,
        k: usize,
        n: usize,
        out: &mut [f32],
    ) {
        for row in 0..t {
            for col in 0..n {
                let mut acc = 0.0f32;
                for block in (0..k).step_by(32) {
                    let chain = |first: usize| {
                        (first..k.min(block + 32)).step_by(2).fold(0.0f32, |acc, i| {
                            x[row * k + i].to_f32().mul_add(w[col * k + i], acc)
                        })
                    };
                    acc += chain(block) + chain(block + 1);
                }
                out[row * n + col] = bias.map_or(acc, |bias| acc + bias[col]);
            }
        }
    }
}
