//! Views as the launchers take them.

use std::sync::Arc;

use kernels::{Float, Gpu, Heads, HeadsMut, Mat, MatMut, View, ViewMut};

use super::same_device;
use crate::ops::check_rows;
use crate::{DType, Element, Error, Layout, Result, TensorMut, TensorRef};

/// A kernel's element type, where it has one for this dtype.
pub(super) fn float(op: &'static str, dtype: DType, layout: &Layout) -> Result<Float> {
    match dtype {
        DType::F32 => Ok(Float::F32),
        DType::BF16 => Ok(Float::Bf16),
        got => Err(Error::UnexpectedDType { op, expected: "F32 or BF16", got, layout: *layout }),
    }
}

/// Rows at one stride: how many, how long, how far apart.
fn rows(op: &'static str, layout: &Layout) -> Result<[usize; 3]> {
    check_rows(op, layout)?;
    let why = "needs rows at one stride on CUDA: make a contiguous copy first";
    let (n, len, stride) =
        layout.as_rows().ok_or(Error::UnsupportedLayout { op, why, layout: *layout })?;
    Ok([n, len, stride])
}

/// Tokens of dense heads: `[tokens, heads, dim]` and the stride of a token.
fn heads(op: &'static str, layout: &Layout) -> Result<([usize; 3], usize)> {
    let refuse = |why| Err(Error::UnsupportedLayout { op, why, layout: *layout });
    let &[tokens, heads, dim] = layout.dims() else {
        return refuse("needs [tokens, heads, head_dim]");
    };
    check_rows(op, layout)?;
    let strides = layout.strides();
    if heads > 1 && strides[1] != dim && layout.elem_count() > 0 {
        return refuse("needs a token's heads behind each other on CUDA");
    }
    let stride = if tokens > 1 { strides[0] } else { heads * dim };
    Ok(([tokens, heads, dim], stride))
}

/// The bytes from a view's first element to its last.
fn span(layout: &Layout, dtype: DType) -> [usize; 2] {
    let end = layout.end();
    let start = layout.offset().min(end);
    [start * dtype.size(), (end - start) * dtype.size()]
}

fn bytes<'a>(op: &'static str, gpu: &Arc<Gpu>, x: &TensorRef<'a>) -> Result<View<'a, u8>> {
    let memory = x.storage().on_cuda(op)?;
    same_device(op, gpu, memory.gpu())?;
    let [start, len] = span(x.layout(), x.dtype());
    Ok(memory.view().part(start, len))
}

fn bytes_mut<'a>(op: &'static str, gpu: &Arc<Gpu>, x: TensorMut<'a>) -> Result<ViewMut<'a, u8>> {
    let [start, len] = span(x.layout(), x.dtype());
    let memory = x.into_storage().on_cuda_mut(op)?;
    same_device(op, gpu, memory.gpu())?;
    Ok(memory.view_mut().part(start, len))
}

/// A view of f32 or bf16 as a matrix.
pub(super) fn mat<'a>(op: &'static str, gpu: &Arc<Gpu>, x: TensorRef<'a>) -> Result<Mat<'a>> {
    let dtype = float(op, x.dtype(), x.layout())?;
    let [n, len, stride] = rows(op, x.layout())?;
    Ok(Mat::new(bytes(op, gpu, &x)?, dtype, n, len, stride)?)
}

/// A view of this type, and no other, as a matrix.
pub(super) fn mat_of<'a, T: Element>(
    op: &'static str,
    gpu: &Arc<Gpu>,
    x: TensorRef<'a>,
) -> Result<Mat<'a>> {
    x.is_of::<T>(op)?;
    mat(op, gpu, x)
}

/// As [`mat`], to write.
pub(super) fn mat_mut<'a>(
    op: &'static str,
    gpu: &Arc<Gpu>,
    x: TensorMut<'a>,
) -> Result<MatMut<'a>> {
    let dtype = float(op, x.dtype(), x.layout())?;
    let [n, len, stride] = rows(op, x.layout())?;
    Ok(MatMut::new(bytes_mut(op, gpu, x)?, dtype, n, len, stride)?)
}

/// As [`mat_of`], to write.
pub(super) fn mat_mut_of<'a, T: Element>(
    op: &'static str,
    gpu: &Arc<Gpu>,
    x: TensorMut<'a>,
) -> Result<MatMut<'a>> {
    x.is_of::<T>(op)?;
    mat_mut(op, gpu, x)
}

/// An f32 view as heads.
pub(super) fn f32_heads<'a>(
    op: &'static str,
    gpu: &Arc<Gpu>,
    x: TensorRef<'a>,
) -> Result<Heads<'a>> {
    x.is_of::<f32>(op)?;
    let (dims, stride) = heads(op, x.layout())?;
    Ok(Heads::new(bytes(op, gpu, &x)?, Float::F32, dims, stride)?)
}

/// As [`f32_heads`], to write.
pub(super) fn f32_heads_mut<'a>(
    op: &'static str,
    gpu: &Arc<Gpu>,
    x: TensorMut<'a>,
) -> Result<HeadsMut<'a>> {
    x.is_of::<f32>(op)?;
    let (dims, stride) = heads(op, x.layout())?;
    Ok(HeadsMut::new(bytes_mut(op, gpu, x)?, Float::F32, dims, stride)?)
}

/// Rows of f32 as tokens of one head each, to write.
pub(super) fn single_heads_mut<'a>(
    op: &'static str,
    gpu: &Arc<Gpu>,
    x: TensorMut<'a>,
) -> Result<HeadsMut<'a>> {
    x.is_of::<f32>(op)?;
    let [n, len, stride] = rows(op, x.layout())?;
    Ok(HeadsMut::new(bytes_mut(op, gpu, x)?, Float::F32, [n, 1, len], stride)?)
}

/// A dense f32 vector.
pub(super) fn f32_vector<'a>(
    op: &'static str,
    gpu: &Arc<Gpu>,
    x: TensorRef<'a>,
) -> Result<View<'a, f32>> {
    let (theirs, view) = x.on_device::<f32>(op)?;
    same_device(op, gpu, theirs)?;
    Ok(view)
}
