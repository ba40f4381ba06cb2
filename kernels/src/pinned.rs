//! Pinned host memory, which the device can read directly, and the upload of weights.

use std::sync::Arc;

use cudarc::driver::{result, sys};

use crate::error::{Called, Error, Result};
use crate::{Gpu, Pod, View, ViewMut};

/// Pinned host memory: its pages are never moved. So copies from it are asynchronous, and can be part of a captured
/// graph.
///
/// A copy outlives the call that enqueues it. The compiler cannot check this, so enqueuing one is `unsafe`:
///
/// ```compile_fail
/// fn copy(host: &kernels::Pinned<u8>, to: &mut kernels::ViewMut<'_, u8>) {
///     host.enqueue_copy(to).unwrap(); // not without `unsafe`
/// }
/// ```
pub struct Pinned<T: Pod> {
    gpu: Arc<Gpu>,
    ptr: *mut T,
    len: usize,
}

// SAFETY: plain memory, owned by one value.
unsafe impl<T: Pod> Send for Pinned<T> {}
// SAFETY: as above.
unsafe impl<T: Pod> Sync for Pinned<T> {}

impl<T: Pod> Pinned<T> {
    /// `len` zeros.
    ///
    /// # Errors
    /// Errors of the driver.
    pub fn zeroed(gpu: &Arc<Gpu>, len: usize) -> Result<Self> {
        gpu.bind()?;
        let bytes = (len * size_of::<T>()).max(16);
        // SAFETY: cleared before it is read.
        let ptr = unsafe { result::malloc_host(bytes, 0) }.called("cuMemHostAlloc")?;
        // SAFETY: `bytes` bytes were allocated; zeros are values of a `Pod`.
        unsafe { std::ptr::write_bytes(ptr.cast::<u8>(), 0, bytes) };
        Ok(Self { gpu: Arc::clone(gpu), ptr: ptr.cast(), len })
    }

    /// Elements of the buffer. Enqueued copies to it must be done.
    pub fn as_slice(&self) -> &[T] {
        // SAFETY: `len` elements were allocated and initialised.
        unsafe { std::slice::from_raw_parts(self.ptr, self.len) }
    }

    /// Elements of the buffer, to write. Enqueued copies from it and to it must be done.
    pub fn as_mut_slice(&mut self) -> &mut [T] {
        // SAFETY: as above, and `&mut self` makes this the only reference.
        unsafe { std::slice::from_raw_parts_mut(self.ptr, self.len) }
    }

    /// Waits until all work enqueued so far has run.
    ///
    /// # Errors
    /// Errors of the driver.
    pub fn wait(&self) -> Result<()> {
        self.gpu.synchronize()
    }

    /// Enqueue a copy of its first elements to the device, as many as `to` has.
    ///
    /// # Safety
    /// Until the copy is done ([`Gpu::synchronize`], or an event behind it was waited for), these elements are not
    /// written, and the memory of `to` is neither freed nor used outside of the device's own stream. The
    /// borrows end with this call, so the compiler does not see to it. A copy that is captured in a graph runs
    /// with each replay, and both memories must live as long as the graph is replayed. Dropping `self` waits
    /// for the device by itself.
    ///
    /// # Errors
    /// [`Error::Shape`] when it has fewer; the driver's.
    pub unsafe fn enqueue_copy(&self, to: &mut ViewMut<'_, T>) -> Result<()> {
        let Some(part) = self.as_slice().get(..to.len()) else {
            let why = format!("{} elements are wanted of {}", to.len(), self.len);
            return Err(Error::shape("copy to the device", why));
        };
        if part.is_empty() {
            return Ok(());
        }
        self.gpu.bind()?;
        // SAFETY: both sides have so many elements. The caller keeps them as they are until the copy is done.
        unsafe { result::memcpy_htod_async(to.ptr(), part, self.gpu.stream()) }
            .called("cuMemcpyHtoDAsync")
    }

    /// Enqueue a copy from the device to elements `at..at + from.len()`. They are there when the device has
    /// been waited for ([`Gpu::synchronize`]).
    ///
    /// # Safety
    /// Until the copy is done, these elements are neither read nor written, and the memory of `from` is neither freed
    /// nor used outside of the device's own stream. What [`Pinned::enqueue_copy`] says of graphs and of dropping holds
    /// here too.
    ///
    /// # Errors
    /// [`Error::Shape`] when it has no such elements; the driver's.
    pub unsafe fn enqueue_fetch(&mut self, at: usize, from: View<'_, T>) -> Result<()> {
        let (len, have) = (from.len(), self.len);
        let end = at.checked_add(len).filter(|end| *end <= have);
        let Some(end) = end else {
            let why = format!("{len} elements at {at} of {have}");
            return Err(Error::shape("copy to the host", why));
        };
        if from.is_empty() {
            return Ok(());
        }
        self.gpu.bind()?;
        let stream = self.gpu.stream();
        // SAFETY: `at..end` lies within the allocation. Copies to other elements may be under way, so no reference to
        // those is made.
        let part = unsafe { std::slice::from_raw_parts_mut(self.ptr.add(at), end - at) };
        // SAFETY: both sides have so many elements. The caller lets them be until the copy is done.
        unsafe { result::memcpy_dtoh_async(part, from.ptr(), stream) }.called("cuMemcpyDtoHAsync")
    }
}

impl<T: Pod> Drop for Pinned<T> {
    fn drop(&mut self) {
        let _ = self.gpu.synchronize();
        // SAFETY: allocated by `zeroed`, freed once.
        let _ = unsafe { result::free_host(self.ptr.cast()) };
    }
}

/// Copies large data to the device: while one half of a pinned buffer is copied, the other half is filled.
pub struct Uploader {
    gpu: Arc<Gpu>,
    /// Size of a half, in bytes.
    half: usize,
    halves: [Pinned<u8>; 2],
    /// Events, each recorded behind the last copy out of its half.
    done: [sys::CUevent; 2],
    next: usize,
}

// SAFETY: the events are the driver's and owned by this value.
unsafe impl Send for Uploader {}

impl Uploader {
    /// Size of a half in bytes; a larger one is not faster.
    pub const LARGEST: usize = 16 << 20;

    /// Creates an uploader with halves of the full size.
    ///
    /// # Errors
    /// Errors of the driver.
    pub fn new(gpu: &Arc<Gpu>) -> Result<Self> {
        Self::with_room_for(gpu, Self::LARGEST)
    }

    /// Creates an uploader for data of at most so many bytes; larger data is copied in more pieces.
    ///
    /// # Errors
    /// Errors of the driver.
    pub fn with_room_for(gpu: &Arc<Gpu>, bytes: usize) -> Result<Self> {
        gpu.bind()?;
        let size = bytes.clamp(1 << 12, Self::LARGEST);
        let half = || Pinned::zeroed(gpu, size);
        let event = || {
            let flags = sys::CUevent_flags::CU_EVENT_DISABLE_TIMING;
            result::event::create(flags).called("cuEventCreate")
        };
        let halves = [half()?, half()?];
        Ok(Self { gpu: Arc::clone(gpu), half: size, halves, done: [event()?, event()?], next: 0 })
    }

    /// Maximum number of bytes of a piece.
    pub fn most(&self) -> usize {
        self.half
    }

    /// Fills `to` piece by piece: `fill(offset, piece)` writes the bytes from `offset` on. The length of every piece
    /// but the last is a multiple of `unit` bytes (rows, for example).
    ///
    /// # Errors
    /// Those of `fill`; [`Error::Shape`] for a unit that is larger than [`Uploader::most`].
    pub fn upload<E: From<Error>>(
        &mut self,
        to: &mut ViewMut<'_, u8>,
        unit: usize,
        mut fill: impl FnMut(usize, &mut [u8]) -> std::result::Result<(), E>,
    ) -> std::result::Result<(), E> {
        let unit = unit.max(1);
        if unit > self.half {
            let why = format!("a row of {unit} bytes, but {} is the most at once", self.half);
            return Err(Error::shape("upload", why).into());
        }
        self.gpu.bind()?;
        let piece = self.half / unit * unit;
        let mut offset = 0;
        while offset < to.len() {
            let len = piece.min(to.len() - offset);
            let half = self.next;
            self.next = 1 - half;
            // SAFETY: the event is alive; one that was never recorded is done.
            unsafe { result::event::synchronize(self.done[half]) }.called("cuEventSynchronize")?;
            let bytes = &mut self.halves[half].as_mut_slice()[..len];
            fill(offset, bytes)?;
            let target = to.ptr() + offset as u64;
            let stream = self.gpu.copy_stream();
            // SAFETY: `len` bytes lie within both sides; this half is not written before its event.
            unsafe {
                result::memcpy_htod_async(target, bytes, stream).called("cuMemcpyHtoDAsync")?;
                result::event::record(self.done[half], stream).called("cuEventRecord")?;
            }
            offset += len;
        }
        Ok(())
    }

    /// Waits for all copies.
    ///
    /// # Errors
    /// Errors of the driver.
    pub fn finish(&mut self) -> Result<()> {
        self.gpu.finish_copies()
    }
}

impl Drop for Uploader {
    fn drop(&mut self) {
        let _ = self.finish();
        for event in self.done {
            // SAFETY: made by `new`, destroyed once.
            let _ = unsafe { result::event::destroy(event) };
        }
    }
}
