//! Shapes over device memory: what the launchers take.

use std::marker::PhantomData;

use crate::error::{Error, Result};
use crate::{View, ViewMut};

/// The two element types of activations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Float {
    /// IEEE single precision.
    F32,
    /// bfloat16: the upper half of an f32.
    Bf16,
}

impl Float {
    /// Bytes of an element.
    pub fn size(self) -> usize {
        match self {
            Float::F32 => 4,
            Float::Bf16 => 2,
        }
    }

    /// Suffix of the kernels' names.
    pub fn suffix(self) -> &'static str {
        match self {
            Float::F32 => "f32",
            Float::Bf16 => "bf16",
        }
    }
}

/// A matrix: `rows` rows of `width` elements, `stride` elements apart.
#[derive(Clone, Copy, Debug)]
pub struct Mat<'a> {
    /// Address of the first element.
    pub ptr: u64,
    /// Element type.
    pub dtype: Float,
    /// Rows.
    pub rows: usize,
    /// Elements of a row.
    pub width: usize,
    /// Elements from one row's start to the next one's.
    pub stride: usize,
    borrow: PhantomData<&'a [u8]>,
}

/// A matrix to write: see [`Mat`].
#[derive(Debug)]
pub struct MatMut<'a> {
    /// Address of the first element.
    pub ptr: u64,
    /// Element type.
    pub dtype: Float,
    /// Rows.
    pub rows: usize,
    /// Elements of a row.
    pub width: usize,
    /// Elements from one row's start to the next one's.
    pub stride: usize,
    borrow: PhantomData<&'a mut [u8]>,
}

/// Heads of tokens: `[tokens, heads, dim]`, a token's heads behind each other, tokens `stride`
/// elements apart.
#[derive(Clone, Copy, Debug)]
pub struct Heads<'a> {
    /// Address of the first element.
    pub ptr: u64,
    /// Element type.
    pub dtype: Float,
    /// Tokens.
    pub tokens: usize,
    /// Heads of a token.
    pub heads: usize,
    /// Elements of a head.
    pub dim: usize,
    /// Elements from one token's first head to the next one's.
    pub stride: usize,
    borrow: PhantomData<&'a [u8]>,
}

/// Heads to write: see [`Heads`].
#[derive(Debug)]
pub struct HeadsMut<'a> {
    /// Address of the first element.
    pub ptr: u64,
    /// Element type.
    pub dtype: Float,
    /// Tokens.
    pub tokens: usize,
    /// Heads of a token.
    pub heads: usize,
    /// Elements of a head.
    pub dim: usize,
    /// Elements from one token's first head to the next one's.
    pub stride: usize,
    borrow: PhantomData<&'a mut [u8]>,
}

/// The shape of a KV cache: keys and values apart, each `[blocks, block_size, heads, dim]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvShape {
    /// Blocks.
    pub blocks: usize,
    /// Number of tokens per block.
    pub block_size: usize,
    /// KV heads.
    pub heads: usize,
    /// Elements of a head.
    pub dim: usize,
    /// Element type.
    pub dtype: Float,
}

impl KvShape {
    /// Number of elements of the keys, and as many of the values.
    pub fn elements(&self) -> usize {
        self.blocks * self.block_size * self.heads * self.dim
    }

    /// Number of bytes of the keys, and as many of the values.
    pub fn bytes(&self) -> usize {
        self.elements() * self.dtype.size()
    }
}

/// Keys and values of one layer.
#[derive(Clone, Copy, Debug)]
pub struct Kv<'a> {
    /// Shape of the cache.
    pub shape: KvShape,
    /// Address of the keys.
    pub k: u64,
    /// Address of the values.
    pub v: u64,
    borrow: PhantomData<&'a [u8]>,
}

/// Keys and values of one layer, to write.
#[derive(Debug)]
pub struct KvMut<'a> {
    /// Shape of the cache.
    pub shape: KvShape,
    /// Address of the keys.
    pub k: u64,
    /// Address of the values.
    pub v: u64,
    borrow: PhantomData<&'a mut [u8]>,
}

/// Number of elements from the first of a shape to the end of its last.
fn span(rows: usize, width: usize, stride: usize) -> usize {
    if rows == 0 || width == 0 { 0 } else { (rows - 1) * stride + width }
}

fn within(op: &'static str, bytes: usize, elements: usize, dtype: Float) -> Result<()> {
    if elements * dtype.size() <= bytes {
        return Ok(());
    }
    Err(Error::shape(op, format!("{elements} elements of {dtype:?} in {bytes} bytes")))
}

fn apart(rows: usize, width: usize, stride: usize) -> Result<()> {
    if rows <= 1 || stride >= width {
        return Ok(());
    }
    Err(Error::shape("rows", format!("rows of {width} elements lie {stride} apart")))
}

impl<'a> Mat<'a> {
    /// A matrix in this memory.
    ///
    /// # Errors
    /// [`Error::Shape`] when it does not fit.
    pub fn new(
        memory: View<'a, u8>,
        dtype: Float,
        rows: usize,
        width: usize,
        stride: usize,
    ) -> Result<Self> {
        within("a matrix", memory.len(), span(rows, width, stride), dtype)?;
        Ok(Self { ptr: memory.ptr(), dtype, rows, width, stride, borrow: PhantomData })
    }

    /// A matrix whose rows lie behind each other.
    ///
    /// # Errors
    /// [`Error::Shape`] when it does not fit.
    pub fn dense(memory: View<'a, u8>, dtype: Float, rows: usize, width: usize) -> Result<Self> {
        Self::new(memory, dtype, rows, width, width)
    }

    /// These rows only, which must be there.
    pub(crate) fn part(self, first: usize, rows: usize) -> Self {
        let ptr = self.ptr + (first * self.stride * self.dtype.size()) as u64;
        Self { ptr, rows, ..self }
    }
}

impl<'a> MatMut<'a> {
    /// A matrix in this memory.
    ///
    /// # Errors
    /// [`Error::Shape`] when it does not fit, or its rows overlap.
    pub fn new(
        memory: ViewMut<'a, u8>,
        dtype: Float,
        rows: usize,
        width: usize,
        stride: usize,
    ) -> Result<Self> {
        within("a matrix", memory.len(), span(rows, width, stride), dtype)?;
        apart(rows, width, stride)?;
        Ok(Self { ptr: memory.ptr(), dtype, rows, width, stride, borrow: PhantomData })
    }

    /// A matrix whose rows lie behind each other.
    ///
    /// # Errors
    /// [`Error::Shape`] when it does not fit.
    pub fn dense(memory: ViewMut<'a, u8>, dtype: Float, rows: usize, width: usize) -> Result<Self> {
        Self::new(memory, dtype, rows, width, width)
    }

    /// Returns a read-only view.
    pub fn as_mat(&self) -> Mat<'_> {
        let Self { ptr, dtype, rows, width, stride, .. } = *self;
        Mat { ptr, dtype, rows, width, stride, borrow: PhantomData }
    }

    /// Borrows the matrix again for a shorter time.
    pub fn reborrow(&mut self) -> MatMut<'_> {
        let Self { ptr, dtype, rows, width, stride, .. } = *self;
        MatMut { ptr, dtype, rows, width, stride, borrow: PhantomData }
    }

    /// These columns only, which must be there.
    pub(crate) fn columns(self, first: usize, width: usize) -> Self {
        let ptr = self.ptr + (first * self.dtype.size()) as u64;
        Self { ptr, width, ..self }
    }

    /// A view at an address for which the caller vouches.
    pub(crate) fn at(ptr: u64, dtype: Float, rows: usize, width: usize) -> Self {
        Self { ptr, dtype, rows, width, stride: width, borrow: PhantomData }
    }
}

impl<'a> Heads<'a> {
    /// Heads in this memory.
    ///
    /// # Errors
    /// [`Error::Shape`] when they do not fit.
    pub fn new(
        memory: View<'a, u8>,
        dtype: Float,
        [tokens, heads, dim]: [usize; 3],
        stride: usize,
    ) -> Result<Self> {
        within("heads", memory.len(), span(tokens, heads * dim, stride), dtype)?;
        Ok(Self { ptr: memory.ptr(), dtype, tokens, heads, dim, stride, borrow: PhantomData })
    }
}

impl<'a> HeadsMut<'a> {
    /// Heads in this memory.
    ///
    /// # Errors
    /// [`Error::Shape`] when they do not fit, or tokens overlap.
    pub fn new(
        memory: ViewMut<'a, u8>,
        dtype: Float,
        [tokens, heads, dim]: [usize; 3],
        stride: usize,
    ) -> Result<Self> {
        within("heads", memory.len(), span(tokens, heads * dim, stride), dtype)?;
        apart(tokens, heads * dim, stride)?;
        Ok(Self { ptr: memory.ptr(), dtype, tokens, heads, dim, stride, borrow: PhantomData })
    }
}

impl<'a> Kv<'a> {
    /// Keys and values in this memory.
    ///
    /// # Errors
    /// [`Error::Shape`] when they do not fit.
    pub fn new(shape: KvShape, k: View<'a, u8>, v: View<'a, u8>) -> Result<Self> {
        within("keys", k.len(), shape.elements(), shape.dtype)?;
        within("values", v.len(), shape.elements(), shape.dtype)?;
        Ok(Self { shape, k: k.ptr(), v: v.ptr(), borrow: PhantomData })
    }
}

impl<'a> KvMut<'a> {
    /// Keys and values in this memory.
    ///
    /// # Errors
    /// [`Error::Shape`] when they do not fit.
    pub fn new(shape: KvShape, k: ViewMut<'a, u8>, v: ViewMut<'a, u8>) -> Result<Self> {
        within("keys", k.len(), shape.elements(), shape.dtype)?;
        within("values", v.len(), shape.elements(), shape.dtype)?;
        Ok(Self { shape, k: k.ptr(), v: v.ptr(), borrow: PhantomData })
    }
}
