//! Tensors: owned storage with a layout, and the borrowed views that ops take.
//!
//! A [`Tensor`] owns its memory. Ops take [`TensorRef`] and [`TensorMut`]: a borrow, a dtype and a
//! [`Layout`], all on the stack, so slicing in the middle of a forward pass costs nothing and the
//! borrow checker still sees who writes where.

mod device;
mod rows;

use std::fmt;

use crate::storage::{AlignedBytes, Storage};
use crate::{DType, Device, Element, Error, Layout, Result};

pub use rows::{Rows, RowsMut};

/// An n-dimensional array that owns its storage.
///
/// ```
/// use l1_tensor::{DType, Tensor};
///
/// let matrix = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0], &[2, 3])?;
/// assert_eq!((matrix.dtype(), matrix.dims()), (DType::F32, &[2, 3][..]));
/// // A view borrows: the last two columns, without a copy.
/// let columns = matrix.view().narrow(1, 1, 2)?;
/// assert_eq!(columns.to_vec_f32()?, [2.0, 3.0, 5.0, 6.0]);
/// # Ok::<(), l1_tensor::Error>(())
/// ```
pub struct Tensor {
    storage: Storage,
    dtype: DType,
    layout: Layout,
}

impl Tensor {
    /// Creates a tensor of zeros.
    ///
    /// # Errors
    /// [`Error::BadShape`] or [`Error::OutOfMemory`]; [`Error::Device`] for a device that is not available.
    pub fn zeros(shape: &[usize], dtype: DType, device: Device) -> Result<Self> {
        let layout = Layout::contiguous(shape)?;
        let storage = Storage::zeroed(device, layout.elem_count() * dtype.size())?;
        Ok(Self { storage, dtype, layout })
    }

    /// Creates a host tensor with a copy of `data`.
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

    /// Layout: shape, strides and offset.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Size of every dimension.
    pub fn dims(&self) -> &[usize] {
        self.layout.dims()
    }

    /// Device that holds the memory.
    pub fn device(&self) -> Device {
        self.storage.device()
    }

    /// Size of the storage, in bytes.
    pub fn bytes(&self) -> usize {
        self.storage.len()
    }

    /// Its memory.
    pub(crate) fn storage(&self) -> &Storage {
        &self.storage
    }

    /// Its memory, to write.
    pub(crate) fn storage_mut(&mut self) -> &mut Storage {
        &mut self.storage
    }

    /// All bytes of the storage, for kernels with a layout of their own.
    pub(crate) fn raw(&self) -> &[u8] {
        self.storage.bytes()
    }

    /// All bytes of the storage, to write.
    pub(crate) fn raw_mut(&mut self) -> &mut [u8] {
        self.storage.bytes_mut()
    }

    /// Borrows the whole tensor.
    pub fn view(&self) -> TensorRef<'_> {
        TensorRef { storage: &self.storage, dtype: self.dtype, layout: self.layout }
    }

    /// Borrows the whole tensor mutably.
    pub fn view_mut(&mut self) -> TensorMut<'_> {
        TensorMut { storage: &mut self.storage, dtype: self.dtype, layout: self.layout }
    }

    /// Returns a copy of the elements as f32, in row-major order (for tests, dumps and printing).
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

impl fmt::Debug for TensorRef<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} on {}", self.dtype, self.layout, self.storage.device())
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

        /// Layout: shape, strides and offset.
        pub fn layout(&self) -> &Layout {
            &self.layout
        }

        /// Size of every dimension.
        pub fn dims(&self) -> &[usize] {
            self.layout.dims()
        }

        /// The right type, wherever it is.
        pub(crate) fn is_of<T: Element>(&self, op: &'static str) -> Result<()> {
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

        /// Number and length of the rows of a view that can be walked as rows at one stride.
        pub(crate) fn row_shape<T: Element>(&self, op: &'static str) -> Result<(usize, usize)> {
            self.is_of::<T>(op)?;
            let why = DENSE_ROWS;
            let no_rows = Error::UnsupportedLayout { op, why, layout: self.layout };
            self.layout.as_rows().map(|(n, len, _)| (n, len)).ok_or(no_rows)
        }

        /// The right type, and host memory.
        fn check<T: Element>(&self, op: &'static str) -> Result<()> {
            self.is_of::<T>(op)?;
            self.storage.on_host(op)
        }

        /// Device that holds the memory.
        pub fn device(&self) -> Device {
            self.storage.device()
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

    /// Refuse a device's memory, in the name of `op`.
    pub(crate) fn on_host(&self, op: &'static str) -> Result<()> {
        self.storage.on_host(op)
    }

    /// What it is a view of.
    pub(crate) fn storage(&self) -> &'a Storage {
        self.storage
    }

    /// Some of a storage that no tensor owns. It must hold all of the layout.
    pub(crate) fn over(storage: &'a Storage, dtype: DType, layout: Layout) -> Self {
        debug_assert!(layout.end() * dtype.size() <= storage.len());
        Self { storage, dtype, layout }
    }

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
            DType::F32 => self.for_each::<f32>(|v| out.push(v))?,
            DType::BF16 => self.for_each::<half::bf16>(|v| out.push(v.to_f32()))?,
            DType::F16 => self.for_each::<half::f16>(|v| out.push(v.to_f32()))?,
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

    /// A copy of the elements on the host, in row-major order, when everything that was enqueued on
    /// their device has run.
    ///
    /// # Errors
    /// [`Error::UnexpectedDType`]; [`Error::Cuda`].
    pub fn to_host<T: Element>(&self) -> Result<Vec<T>> {
        self.is_of::<T>("to_host")?;
        let mut out = Vec::with_capacity(self.layout.elem_count());
        self.for_each::<T>(|v| out.push(v))?;
        Ok(out)
    }

    /// The same elements (f32) where the host can read them: as they are, or fetched from a device into
    /// `copy`, which waits for it.
    ///
    /// # Errors
    /// As [`TensorRef::to_host`], of a tensor on a device.
    pub fn on_cpu(self, copy: &'a mut Option<Tensor>) -> Result<TensorRef<'a>> {
        match self.device() {
            Device::Cpu => Ok(self),
            Device::Cuda(_) => {
                let fetched = Tensor::from_slice(&self.to_host::<f32>()?, self.dims())?;
                Ok(copy.insert(fetched).view())
            }
        }
    }

    /// The elements in row-major order. The dtype must be `T`'s.
    fn for_each<T: Element>(&self, mut f: impl FnMut(T)) -> Result<()> {
        let l = &self.layout;
        let (start, end) = (l.offset().min(l.end()), l.end());
        let fetched;
        let data: &[T] = match self.storage {
            Storage::Cpu(bytes) => &cast(bytes.as_slice())[start..end],
            Storage::Cuda(memory) => {
                let size = self.dtype.size();
                let mut bytes = AlignedBytes::zeroed((end - start) * size)?;
                let part = memory.view().part(start * size, (end - start) * size);
                part.copy_to(memory.gpu(), bytes.as_mut_slice())?;
                fetched = bytes;
                cast(fetched.as_slice())
            }
        };
        let mut index = [0usize; crate::MAX_RANK];
        for _ in 0..l.elem_count() {
            let at: usize = l.strides().iter().zip(&index).map(|(s, i)| s * i).sum();
            f(data[at]);
            for d in (0..l.rank()).rev() {
                index[d] += 1;
                if index[d] < l.dims()[d] {
                    break;
                }
                index[d] = 0;
            }
        }
        Ok(())
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

    /// What it is a view of, to write.
    pub(crate) fn into_storage(self) -> &'a mut Storage {
        self.storage
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
