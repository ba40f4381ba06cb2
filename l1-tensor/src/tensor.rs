//! Tensors: owned storage with a layout, and the borrowed views that ops take.
//!
//! A [`Tensor`] owns its memory. Ops take [`TensorRef`] and [`TensorMut`]: a borrow, a dtype and a
//! [`Layout`], all on the stack, so slicing in the middle of a forward pass costs nothing and the
//! borrow checker still sees who writes where.

use crate::storage::{AlignedBytes, Storage};
use crate::{DType, Device, Element, Error, Layout, Result};

/// An n-dimensional array that owns its storage.
pub struct Tensor {
    storage: Storage,
    dtype: DType,
    layout: Layout,
}

impl Tensor {
    /// A tensor of zeros.
    ///
    /// # Errors
    /// [`Error::BadShape`] or [`Error::OutOfMemory`]; [`Error::Device`] for a device without
    /// memory here.
    pub fn zeros(shape: &[usize], dtype: DType, device: Device) -> Result<Self> {
        let layout = Layout::contiguous(shape)?;
        match device {
            Device::Cpu => {
                let bytes = layout.elem_count() * dtype.size();
                let storage = Storage::Cpu(AlignedBytes::zeroed(bytes)?);
                Ok(Self { storage, dtype, layout })
            }
            Device::Cuda(_) => Err(Error::Device {
                device: device.to_string(),
                why: "CUDA tensors are not part of this version; use --device cpu".into(),
            }),
        }
    }

    /// A host tensor with a copy of `data`.
    ///
    /// # Errors
    /// [`Error::BadShape`] when the shape does not hold exactly `data.len()` elements.
    pub fn from_slice<T: Element>(data: &[T], shape: &[usize]) -> Result<Self> {
        let mut t = Self::zeros(shape, T::DTYPE, Device::Cpu)?;
        if t.layout.elem_count() != data.len() {
            return Err(Error::BadShape {
                shape: shape.to_vec(),
                why: "the data has another number of elements",
            });
        }
        t.view_mut().as_mut_slice::<T>("from_slice")?.copy_from_slice(data);
        Ok(t)
    }

    /// Element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Where the elements lie.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// The size of every dimension.
    pub fn dims(&self) -> &[usize] {
        self.layout.dims()
    }

    /// Where the memory is.
    pub fn device(&self) -> Device {
        match self.storage {
            Storage::Cpu(_) => Device::Cpu,
        }
    }

    /// Bytes of storage held.
    pub fn bytes(&self) -> usize {
        self.storage.len()
    }

    /// All bytes of the storage, for kernels with a layout of their own.
    pub(crate) fn raw(&self) -> &[u8] {
        self.storage.bytes()
    }

    /// All bytes of the storage, to write.
    pub(crate) fn raw_mut(&mut self) -> &mut [u8] {
        self.storage.bytes_mut()
    }

    /// Borrow it whole.
    pub fn view(&self) -> TensorRef<'_> {
        TensorRef { storage: &self.storage, dtype: self.dtype, layout: self.layout }
    }

    /// Borrow it whole, to write.
    pub fn view_mut(&mut self) -> TensorMut<'_> {
        TensorMut { storage: &mut self.storage, dtype: self.dtype, layout: self.layout }
    }

    /// A copy of the elements as f32, in row-major order (for tests, dumps and printing).
    ///
    /// # Errors
    /// [`Error::UnexpectedDType`] for integer tensors.
    pub fn to_vec_f32(&self) -> Result<Vec<f32>> {
        self.view().to_vec_f32()
    }
}

/// A borrowed tensor.
#[derive(Clone, Copy)]
pub struct TensorRef<'a> {
    storage: &'a Storage,
    dtype: DType,
    layout: Layout,
}

/// A borrowed tensor that may be written.
pub struct TensorMut<'a> {
    storage: &'a mut Storage,
    dtype: DType,
    layout: Layout,
}

/// Rows of a view: `n` rows of `len` dense elements, `stride` elements apart.
#[derive(Clone, Copy)]
pub struct Rows<'a, T> {
    data: &'a [T],
    /// How many rows.
    pub n: usize,
    /// Elements in a row.
    pub len: usize,
    /// Elements from one row's start to the next one's.
    pub stride: usize,
}

impl<'a, T> Rows<'a, T> {
    /// Row `i`. Panics beyond the last row: callers iterate over `0..n`.
    pub fn row(&self, i: usize) -> &'a [T] {
        &self.data[i * self.stride..][..self.len]
    }
}

/// Rows of a view, to write. See [`Rows`].
pub struct RowsMut<'a, T> {
    data: &'a mut [T],
    /// How many rows.
    pub n: usize,
    /// Elements in a row.
    pub len: usize,
    /// Elements from one row's start to the next one's.
    pub stride: usize,
}

impl<T> RowsMut<'_, T> {
    /// Row `i`. Panics beyond the last row: callers iterate over `0..n`.
    pub fn row(&mut self, i: usize) -> &mut [T] {
        &mut self.data[i * self.stride..][..self.len]
    }

    /// Start of the first row, for kernels that split rows among threads.
    pub fn as_mut_ptr(&mut self) -> *mut T {
        self.data.as_mut_ptr()
    }
}

/// View bytes as elements. The buffer's alignment ([`crate::storage::ALIGN`]) and `Element` being
/// sealed make this sound.
fn cast<T: Element>(bytes: &[u8]) -> &[T] {
    let n = bytes.len() / size_of::<T>();
    // SAFETY: buffers are 64-byte aligned, `n` elements fit, and any bits are a valid `T`.
    unsafe { std::slice::from_raw_parts(bytes.as_ptr().cast(), n) }
}

fn cast_mut<T: Element>(bytes: &mut [u8]) -> &mut [T] {
    let n = bytes.len() / size_of::<T>();
    // SAFETY: as in `cast`; the exclusive borrow carries over.
    unsafe { std::slice::from_raw_parts_mut(bytes.as_mut_ptr().cast(), n) }
}

const DENSE_ROWS: &str = "needs rows: a dense last dimension, the leading ones at one stride";
const DENSE: &str = "needs a contiguous tensor";

macro_rules! shared_view_methods {
    () => {
        /// Element type.
        pub fn dtype(&self) -> DType {
            self.dtype
        }

        /// Where the elements lie.
        pub fn layout(&self) -> &Layout {
            &self.layout
        }

        /// The size of every dimension.
        pub fn dims(&self) -> &[usize] {
            self.layout.dims()
        }

        fn check<T: Element>(&self, op: &'static str) -> Result<()> {
            if self.dtype != T::DTYPE {
                return Err(Error::UnexpectedDType {
                    op,
                    expected: T::DTYPE.as_str(),
                    got: self.dtype,
                    layout: self.layout,
                });
            }
            Ok(())
        }

        /// Another layout over the same storage, made by `f` from this one. The storage must hold
        /// all of it.
        fn with_layout(self, layout: Layout) -> Self {
            debug_assert!(layout.end() * self.dtype.size() <= self.storage.len());
            Self { layout, ..self }
        }

        /// See [`Layout::narrow`].
        pub fn narrow(self, d: usize, start: usize, len: usize) -> Result<Self> {
            let layout = self.layout.narrow(d, start, len)?;
            Ok(self.with_layout(layout))
        }

        /// See [`Layout::reshape`].
        pub fn reshape(self, shape: &[usize]) -> Result<Self> {
            let layout = self.layout.reshape(shape)?;
            Ok(self.with_layout(layout))
        }

        /// See [`Layout::transpose`].
        pub fn transpose(self, a: usize, b: usize) -> Result<Self> {
            let layout = self.layout.transpose(a, b)?;
            Ok(self.with_layout(layout))
        }
    };
}

impl<'a> TensorRef<'a> {
    shared_view_methods!();

    /// All bytes of the storage, whatever the layout shows of them.
    pub(crate) fn raw(&self) -> &'a [u8] {
        self.storage.bytes()
    }

    /// The elements of a contiguous view.
    ///
    /// # Errors
    /// [`Error::UnexpectedDType`] or [`Error::UnsupportedLayout`], naming `op`.
    pub fn as_slice<T: Element>(&self, op: &'static str) -> Result<&'a [T]> {
        self.check::<T>(op)?;
        if !self.layout.is_contiguous() {
            return Err(Error::UnsupportedLayout { op, why: DENSE, layout: self.layout });
        }
        Ok(&cast(self.storage.bytes())[self.layout.offset()..][..self.layout.elem_count()])
    }

    /// The view as rows.
    ///
    /// # Errors
    /// [`Error::UnexpectedDType`] or [`Error::UnsupportedLayout`], naming `op`.
    pub fn rows<T: Element>(&self, op: &'static str) -> Result<Rows<'a, T>> {
        self.check::<T>(op)?;
        let (n, len, stride) = self.layout.as_rows().ok_or(Error::UnsupportedLayout {
            op,
            why: DENSE_ROWS,
            layout: self.layout,
        })?;
        let data = &cast(self.storage.bytes())
            [self.layout.offset().min(self.layout.end())..self.layout.end()];
        Ok(Rows { data, n, len, stride })
    }

    /// The storage from this view's first element to its last, gaps included: for ops that walk
    /// the strides themselves.
    ///
    /// # Errors
    /// [`Error::UnexpectedDType`], naming `op`.
    pub fn strided<T: Element>(&self, op: &'static str) -> Result<&'a [T]> {
        self.check::<T>(op)?;
        let end = self.layout.end();
        Ok(&cast(self.storage.bytes())[self.layout.offset().min(end)..end])
    }

    /// A copy of the elements as f32, in row-major order.
    ///
    /// # Errors
    /// [`Error::UnexpectedDType`] for integer tensors.
    pub fn to_vec_f32(&self) -> Result<Vec<f32>> {
        let mut out = Vec::with_capacity(self.layout.elem_count());
        match self.dtype {
            DType::F32 => self.for_each::<f32>(|v| out.push(v)),
            DType::BF16 => self.for_each::<half::bf16>(|v| out.push(v.to_f32())),
            DType::F16 => self.for_each::<half::f16>(|v| out.push(v.to_f32())),
            got => {
                return Err(Error::UnexpectedDType {
                    op: "to_vec_f32",
                    expected: "F32, BF16 or F16",
                    got,
                    layout: self.layout,
                });
            }
        }
        Ok(out)
    }

    fn for_each<T: Element>(&self, mut f: impl FnMut(T)) {
        let data: &[T] = cast(self.storage.bytes());
        let l = &self.layout;
        let mut index = [0usize; crate::MAX_RANK];
        for _ in 0..l.elem_count() {
            let at: usize = l.strides().iter().zip(&index).map(|(s, i)| s * i).sum();
            f(data[l.offset() + at]);
            for d in (0..l.rank()).rev() {
                index[d] += 1;
                if index[d] < l.dims()[d] {
                    break;
                }
                index[d] = 0;
            }
        }
    }
}

impl<'a> TensorMut<'a> {
    shared_view_methods!();

    /// Borrow again for a shorter time, so that a view can be used twice.
    pub fn reborrow(&mut self) -> TensorMut<'_> {
        TensorMut { storage: self.storage, dtype: self.dtype, layout: self.layout }
    }

    /// Read what it shows.
    pub fn as_ref(&self) -> TensorRef<'_> {
        TensorRef { storage: self.storage, dtype: self.dtype, layout: self.layout }
    }

    /// The elements of a contiguous view, to write.
    ///
    /// # Errors
    /// [`Error::UnexpectedDType`] or [`Error::UnsupportedLayout`], naming `op`.
    pub fn as_mut_slice<T: Element>(self, op: &'static str) -> Result<&'a mut [T]> {
        self.check::<T>(op)?;
        if !self.layout.is_contiguous() {
            return Err(Error::UnsupportedLayout { op, why: DENSE, layout: self.layout });
        }
        let (offset, n) = (self.layout.offset(), self.layout.elem_count());
        Ok(&mut cast_mut(self.storage.bytes_mut())[offset..][..n])
    }

    /// The view as rows, to write.
    ///
    /// # Errors
    /// [`Error::UnexpectedDType`] or [`Error::UnsupportedLayout`], naming `op`.
    pub fn rows_mut<T: Element>(self, op: &'static str) -> Result<RowsMut<'a, T>> {
        self.check::<T>(op)?;
        let (n, len, stride) = self.layout.as_rows().ok_or(Error::UnsupportedLayout {
            op,
            why: DENSE_ROWS,
            layout: self.layout,
        })?;
        let (start, end) = (self.layout.offset(), self.layout.end());
        let data = &mut cast_mut(self.storage.bytes_mut())[start.min(end)..end];
        Ok(RowsMut { data, n, len, stride })
    }

    /// The storage from this view's first element to its last, gaps included, to write.
    ///
    /// # Errors
    /// [`Error::UnexpectedDType`], naming `op`.
    pub fn strided_mut<T: Element>(self, op: &'static str) -> Result<&'a mut [T]> {
        self.check::<T>(op)?;
        let (start, end) = (self.layout.offset(), self.layout.end());
        Ok(&mut cast_mut(self.storage.bytes_mut())[start.min(end)..end])
    }
}
