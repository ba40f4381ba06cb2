//! Device memory: owned buffers and borrowed views.

use std::fmt;
use std::marker::PhantomData;
use std::mem::size_of;
use std::sync::Arc;

use cudarc::driver::result;

use crate::Gpu;
use crate::error::{Called, Error, Result};

/// Plain numbers, which may be copied to a device and back as bytes.
///
/// # Safety
/// Every bit pattern is a value, and there is no padding.
pub unsafe trait Pod: Copy + Send + Sync + 'static {}

macro_rules! pod {
    ($($t:ty),*) => {$(
        // SAFETY: a primitive number.
        unsafe impl Pod for $t {}
    )*};
}
pod!(u8, i8, u16, i16, u32, i32, u64, i64, f32);

/// Memory of a device, zeroed when it is allocated. Its address never changes.
///
/// It must not be made or dropped while a graph is being captured.
pub struct Buffer {
    gpu: Arc<Gpu>,
    ptr: u64,
    len: usize,
}

impl Buffer {
    /// Allocates `len` zero bytes.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`], or the driver's.
    pub fn zeroed(gpu: &Arc<Gpu>, len: usize) -> Result<Self> {
        gpu.bind()?;
        // The driver rejects an allocation of 0 bytes, and an empty view needs an address.
        let size = len.max(16);
        // SAFETY: nothing reads the memory before it is cleared below.
        let ptr = match unsafe { result::malloc_sync(size) } {
            Ok(ptr) => ptr,
            Err(e) if e.0 as u32 == 2 => {
                let free = gpu.memory().map_or(0, |(free, _)| free);
                return Err(Error::OutOfMemory { bytes: len, free });
            }
            Err(e) => return Err(Error::driver("cuMemAlloc", e)),
        };
        let buffer = Self { gpu: Arc::clone(gpu), ptr, len };
        // SAFETY: `size` bytes were allocated.
        unsafe { result::memset_d8_async(ptr, 0, size, gpu.stream()) }.called("cuMemsetD8Async")?;
        gpu.synchronize()?;
        Ok(buffer)
    }

    /// Allocates a copy of host memory.
    ///
    /// # Errors
    /// As [`Buffer::zeroed`].
    pub fn from_slice<T: Pod>(gpu: &Arc<Gpu>, data: &[T]) -> Result<Self> {
        let mut buffer = Self::zeroed(gpu, size_of_val(data))?;
        buffer.view_mut().cast::<T>().copy_from(gpu, data)?;
        Ok(buffer)
    }

    /// Device of the buffer.
    pub fn gpu(&self) -> &Arc<Gpu> {
        &self.gpu
    }

    /// Size in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Borrows all bytes.
    pub fn view(&self) -> View<'_, u8> {
        View { ptr: self.ptr, len: self.len, borrow: PhantomData }
    }

    /// Borrows all bytes for writing.
    pub fn view_mut(&mut self) -> ViewMut<'_, u8> {
        ViewMut { ptr: self.ptr, len: self.len, borrow: PhantomData }
    }

    /// Copies all bytes to the host, after everything enqueued so far.
    ///
    /// # Errors
    /// Errors of the driver.
    pub fn to_vec<T: Pod>(&self) -> Result<Vec<T>> {
        self.view().cast::<T>().to_vec(&self.gpu)
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // Kernels that still run may use the memory; after them the driver may have it back. An
        // error here would be one of an earlier kernel, which the next call reports.
        let _ = self.gpu.synchronize();
        // An upload that failed halfway may still be copying into it.
        let _ = self.gpu.finish_copies();
        // SAFETY: allocated by `zeroed`, freed once.
        let _ = unsafe { result::free_sync(self.ptr) };
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({} bytes of cuda:{})", self.len, self.gpu.ordinal())
    }
}

/// Borrowed elements in device memory.
#[derive(Debug)]
pub struct View<'a, T> {
    ptr: u64,
    len: usize,
    borrow: PhantomData<&'a [T]>,
}

impl<T> Clone for View<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for View<'_, T> {}

/// Mutably borrowed elements in device memory.
#[derive(Debug)]
pub struct ViewMut<'a, T> {
    ptr: u64,
    len: usize,
    borrow: PhantomData<&'a mut [T]>,
}

macro_rules! view_methods {
    () => {
        /// Address on the device.
        pub fn ptr(&self) -> u64 {
            self.ptr
        }

        /// Number of elements.
        pub fn len(&self) -> usize {
            self.len
        }

        /// Whether there are no elements.
        pub fn is_empty(&self) -> bool {
            self.len == 0
        }

        /// Elements `start..start + len`; fewer, where the view ends before that.
        #[must_use]
        pub fn part(self, start: usize, len: usize) -> Self {
            let start = start.min(self.len);
            let ptr = self.ptr + (start * size_of::<T>()) as u64;
            Self { ptr, len: len.min(self.len - start), borrow: PhantomData }
        }
    };
}

impl<'a, T: Pod> View<'a, T> {
    view_methods!();

    /// The same bytes as elements of another type; a remainder too short for one is left out.
    pub fn cast<U: Pod>(self) -> View<'a, U> {
        let len = self.len * size_of::<T>() / size_of::<U>();
        View { ptr: self.ptr, len, borrow: PhantomData }
    }

    /// Copies to the host, after everything enqueued so far.
    ///
    /// # Errors
    /// [`Error::Shape`] for another length; errors of the driver.
    pub fn copy_to(&self, gpu: &Gpu, out: &mut [T]) -> Result<()> {
        same_len("copy to the host", self.len, out.len())?;
        gpu.bind()?;
        if !out.is_empty() {
            // SAFETY: the view has as many elements; the stream is waited for before `out` is used.
            unsafe { result::memcpy_dtoh_async(out, self.ptr, gpu.stream()) }
                .called("cuMemcpyDtoHAsync")?;
        }
        gpu.synchronize()
    }

    /// Returns a copy on the host.
    ///
    /// # Errors
    /// Errors of the driver.
    pub fn to_vec(&self, gpu: &Gpu) -> Result<Vec<T>> {
        let mut out = Vec::with_capacity(self.len);
        // SAFETY: any bits are a value of a `Pod`; zero is what is there until the copy.
        unsafe {
            std::ptr::write_bytes(out.as_mut_ptr(), 0, self.len);
            out.set_len(self.len);
        }
        self.copy_to(gpu, &mut out)?;
        Ok(out)
    }
}

impl<'a, T: Pod> ViewMut<'a, T> {
    view_methods!();

    /// The same bytes as elements of another type; a remainder too short for one is left out.
    pub fn cast<U: Pod>(self) -> ViewMut<'a, U> {
        let len = self.len * size_of::<T>() / size_of::<U>();
        ViewMut { ptr: self.ptr, len, borrow: PhantomData }
    }

    /// Borrows the view again for a shorter time.
    pub fn reborrow(&mut self) -> ViewMut<'_, T> {
        ViewMut { ptr: self.ptr, len: self.len, borrow: PhantomData }
    }

    /// Returns a read-only view.
    pub fn as_view(&self) -> View<'_, T> {
        View { ptr: self.ptr, len: self.len, borrow: PhantomData }
    }

    /// Copies from the host and waits until the copy is done.
    ///
    /// # Errors
    /// [`Error::Shape`] for another length; errors of the driver.
    pub fn copy_from(&mut self, gpu: &Gpu, data: &[T]) -> Result<()> {
        same_len("copy to the device", self.len, data.len())?;
        gpu.bind()?;
        if !data.is_empty() {
            // SAFETY: the view has as many elements; the stream is waited for before `data` may go.
            unsafe { result::memcpy_htod_async(self.ptr, data, gpu.stream()) }
                .called("cuMemcpyHtoDAsync")?;
        }
        gpu.synchronize()
    }

    /// Enqueues a copy from other memory of the device.
    ///
    /// # Errors
    /// [`Error::Shape`] for another length; errors of the driver.
    pub fn copy_within_device(&mut self, gpu: &Gpu, from: View<'_, T>) -> Result<()> {
        same_len("copy on the device", self.len, from.len)?;
        gpu.bind()?;
        let bytes = self.len * size_of::<T>();
        if bytes == 0 {
            return Ok(());
        }
        // SAFETY: both views have so many bytes.
        unsafe { result::memcpy_dtod_async(self.ptr, from.ptr, bytes, gpu.stream()) }
            .called("cuMemcpyDtoDAsync")
    }

    /// Enqueues a copy of `len` elements of this memory from index `from` to index `to`. The two
    /// ranges must not overlap.
    ///
    /// # Errors
    /// [`Error::Shape`] for ranges beyond the end, or that overlap; errors of the driver.
    pub fn copy_inside(&mut self, gpu: &Gpu, to: usize, from: usize, len: usize) -> Result<()> {
        let end = |start: usize| start.checked_add(len).filter(|end| *end <= self.len);
        let apart = match (end(to), end(from)) {
            (Some(to_end), Some(from_end)) => to_end <= from || from_end <= to,
            _ => false,
        };
        if !apart && len > 0 {
            let why = format!("{len} elements from {from} to {to} of {}", self.len);
            return Err(Error::shape("copy on the device", why));
        }
        let from = View { ptr: self.ptr, len: self.len, borrow: PhantomData }.part(from, len);
        self.reborrow().part(to, len).copy_within_device(gpu, from)
    }

    /// Enqueues zeroing the view.
    ///
    /// # Errors
    /// Errors of the driver.
    pub fn clear(&mut self, gpu: &Gpu) -> Result<()> {
        gpu.bind()?;
        let bytes = self.len * size_of::<T>();
        if bytes == 0 {
            return Ok(());
        }
        // SAFETY: the view has so many bytes.
        unsafe { result::memset_d8_async(self.ptr, 0, bytes, gpu.stream()) }
            .called("cuMemsetD8Async")
    }
}

fn same_len(op: &'static str, ours: usize, theirs: usize) -> Result<()> {
    if ours == theirs {
        return Ok(());
    }
    Err(Error::shape(op, format!("{ours} elements on the device, {theirs} on the other side")))
}
