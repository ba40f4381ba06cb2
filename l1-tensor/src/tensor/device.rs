//! Tensors in the memory of a device.

use std::sync::Arc;

use kernels::{Gpu, Pod, View, ViewMut};

use super::{DENSE, Tensor, TensorMut, TensorRef};
use crate::storage::Storage;
use crate::{Device, Element, Error, Layout, Result};

impl Tensor {
    /// A copy in the memory of a device (or of the host), of the same layout. Done when it returns.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`], [`Error::Cuda`].
    pub fn to_device(&self, device: Device) -> Result<Self> {
        let mut storage = Storage::zeroed(device, self.storage.len())?;
        match (&self.storage, &mut storage) {
            (Storage::Cpu(from), Storage::Cpu(to)) => {
                to.as_mut_slice().copy_from_slice(from.as_slice());
            }
            (Storage::Cpu(from), Storage::Cuda(to)) => {
                let gpu = to.gpu().clone();
                to.view_mut().copy_from(&gpu, from.as_slice())?;
            }
            (Storage::Cuda(from), Storage::Cpu(to)) => {
                from.view().copy_to(from.gpu(), to.as_mut_slice())?;
            }
            (Storage::Cuda(from), Storage::Cuda(to)) => {
                let gpu = to.gpu().clone();
                to.view_mut().copy_from(&gpu, &from.to_vec::<u8>()?)?;
            }
        }
        Ok(Self { storage, dtype: self.dtype, layout: self.layout })
    }
}

impl<'a> TensorRef<'a> {
    /// The device and the elements of a contiguous view that lies in its memory.
    ///
    /// # Errors
    /// [`Error::UnexpectedDType`], [`Error::UnsupportedLayout`] or, for host memory,
    /// [`Error::Device`], naming `op`.
    pub fn on_device<T: Element + Pod>(
        &self,
        op: &'static str,
    ) -> Result<(&'a Arc<Gpu>, View<'a, T>)> {
        self.is_of::<T>(op)?;
        if !self.layout.is_contiguous() {
            return Err(Error::UnsupportedLayout { op, why: DENSE, layout: self.layout });
        }
        let memory = self.storage.on_cuda(op)?;
        let elements = memory.view().cast::<T>();
        let start = self.layout.offset().min(elements.len());
        Ok((memory.gpu(), elements.part(start, self.layout.elem_count())))
    }

    /// This view and `next` as one whose rows are ours and, right behind each of them, theirs; `None`
    /// where they do not lie so.
    pub(crate) fn joined(&self, next: &TensorRef<'_>) -> Option<TensorRef<'a>> {
        let (n, len, stride) = self.layout.as_rows()?;
        let (their_n, their_len, their_stride) = next.layout.as_rows()?;
        let beside = std::ptr::eq(self.storage, next.storage)
            && self.dtype == next.dtype
            && (n, len) == (their_n, their_len)
            && next.layout.offset() == self.layout.offset() + len
            && (n <= 1 || (stride == their_stride && stride >= 2 * len));
        let layout = Layout::strided_rows(self.layout.offset(), n, 2 * len, stride);
        beside.then(|| self.with_layout(layout))
    }
}

impl<'a> TensorMut<'a> {
    /// The elements of a contiguous view in a device's memory, to write.
    ///
    /// # Errors
    /// As [`TensorRef::on_device`].
    pub fn on_device_mut<T: Element + Pod>(self, op: &'static str) -> Result<ViewMut<'a, T>> {
        self.is_of::<T>(op)?;
        if !self.layout.is_contiguous() {
            return Err(Error::UnsupportedLayout { op, why: DENSE, layout: self.layout });
        }
        let (start, len) = (self.layout.offset(), self.layout.elem_count());
        let elements = self.storage.on_cuda_mut(op)?.view_mut().cast::<T>();
        Ok(elements.part(start, len))
    }
}
