//! Many copies between the host and a device that are waited for once.
//!
//! To wait for a copy takes about as long as to copy some hundred kilobytes. The keys of a block of one layer are less than
//! that, and a chunk of a prompt has hundreds of blocks.

use std::mem::size_of;

use cudarc::driver::result;

use crate::error::{Called, Error, Result};
use crate::{Gpu, Pod, View, ViewMut};

/// Waits for the device when it is dropped. So no copy is under way when its memory is given back, whatever happened
/// between.
struct Wait<'a>(&'a Gpu);

impl Drop for Wait<'_> {
    fn drop(&mut self) {
        let _ = self.0.synchronize();
    }
}

impl<T: Pod> View<'_, T> {
    /// Copies parts to the host, after everything enqueued so far, and waits once: into each slice, the elements from an
    /// index on. To [pinned](crate::PinnedBytes) memory they go at the speed of the bus.
    ///
    /// # Errors
    /// [`Error::Shape`] for a part beyond the end; errors of the driver. Earlier parts may have been copied.
    pub fn copy_parts_to<'a>(
        &self,
        gpu: &Gpu,
        parts: impl IntoIterator<Item = (usize, &'a mut [T])>,
    ) -> Result<()> {
        gpu.bind()?;
        let wait = Wait(gpu);
        for (start, out) in parts {
            let from = address("copy to the host", (self.ptr(), self.len()), start, out)?;
            if !out.is_empty() {
                // SAFETY: both sides have as many elements. They are borrowed until this function returns, and `wait` waits
                // for the copy before that.
                unsafe { result::memcpy_dtoh_async(out, from, gpu.stream()) }
                    .called("cuMemcpyDtoHAsync")?;
            }
        }
        drop(wait);
        gpu.synchronize()
    }
}

impl<T: Pod> ViewMut<'_, T> {
    /// Copies parts from the host, and waits once: each slice to the elements from an index on. If parts overlap, the last
    /// one is there in the end.
    ///
    /// # Errors
    /// As [`View::copy_parts_to`].
    pub fn copy_parts_from<'a>(
        &mut self,
        gpu: &Gpu,
        parts: impl IntoIterator<Item = (usize, &'a [T])>,
    ) -> Result<()> {
        gpu.bind()?;
        let wait = Wait(gpu);
        for (start, data) in parts {
            let to = address("copy to the device", (self.ptr(), self.len()), start, data)?;
            if !data.is_empty() {
                // SAFETY: as in `copy_parts_to`.
                unsafe { result::memcpy_htod_async(to, data, gpu.stream()) }
                    .called("cuMemcpyHtoDAsync")?;
            }
        }
        drop(wait);
        gpu.synchronize()
    }
}

/// Address of as many elements as `part` has, from `start` on, of memory at an address and with a length.
fn address<T>(op: &'static str, memory: (u64, usize), start: usize, part: &[T]) -> Result<u64> {
    let (ptr, len) = memory;
    if start.checked_add(part.len()).is_none_or(|end| end > len) {
        let why = format!("{} elements at {start} of {len}", part.len());
        return Err(Error::shape(op, why));
    }
    Ok(ptr + (start * size_of::<T>()) as u64)
}
