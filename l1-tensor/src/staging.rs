//! How a step's numbers travel to the device.
//!
//! Tokens, positions, slots, lengths and tables are a few kilobytes that change with every step. They
//! are written into pinned memory, side by side, and go over in one copy that the host does not wait
//! for. Their addresses on the device stay what they are, so a captured step reads the new numbers.

use kernels::{Mark, Pinned};

use crate::storage::{ALIGN, Storage};
use crate::{DType, Device, Element, Error, Layout, Result, Runtime, TensorRef};

const OP: &str = "staging";

/// Small arrays, written on the host and read on the device. Only a runtime on CUDA has any.
pub struct Staging {
    parts: Vec<Part>,
    host: Pinned<u8>,
    device: Storage,
    /// Behind the last copy out of `host`.
    copied: Mark,
    /// Whether `copied` was waited for since it was set.
    settled: bool,
    /// One past the last byte written since the last copy.
    dirty: usize,
}

/// One array.
struct Part {
    dtype: DType,
    /// Bytes before it.
    start: usize,
    /// Elements it has room for.
    capacity: usize,
}

impl Staging {
    /// Room for one array of each of these types and lengths, in this order. What changes most, or is
    /// longest, belongs at the end: a copy ends where the last array that was written does.
    ///
    /// # Errors
    /// [`Error::Device`] on a CPU, which reads host memory as it is; [`Error::Cuda`].
    pub fn new(rt: &Runtime, arrays: &[(DType, usize)]) -> Result<Self> {
        let Some(gpu) = rt.gpu() else {
            let why = "there is nowhere to bring anything: the host's own arrays do";
            return Err(Error::Device { device: rt.device().to_string(), why: why.into() });
        };
        let mut parts = Vec::with_capacity(arrays.len());
        let mut end = 0usize;
        for (dtype, capacity) in arrays {
            let start = end.next_multiple_of(ALIGN);
            let bytes = Layout::contiguous(&[*capacity])?.elem_count() * dtype.size();
            end = start + bytes;
            parts.push(Part { dtype: *dtype, start, capacity: *capacity });
        }
        // Whole elements of every type, so that any part can be seen as part of an array of its own.
        let bytes = end.next_multiple_of(ALIGN);
        Ok(Self {
            parts,
            host: Pinned::zeroed(gpu, bytes)?,
            device: Storage::zeroed(Device::Cuda(gpu.ordinal()), bytes)?,
            copied: Mark::new(gpu)?,
            settled: true,
            dirty: 0,
        })
    }

    fn part<T: Element>(&self, i: usize, len: usize) -> Result<&Part> {
        let limit = self.parts.len();
        let part = self.parts.get(i).ok_or(Error::OutOfRange {
            op: OP,
            what: "array",
            index: i as i64,
            limit,
        })?;
        if part.dtype != T::DTYPE {
            let layout = Layout::contiguous(&[part.capacity])?;
            let expected = part.dtype.as_str();
            return Err(Error::UnexpectedDType { op: OP, expected, got: T::DTYPE, layout });
        }
        fits(len, part.capacity)?;
        Ok(part)
    }

    /// Write the beginning of array `i`. The rest of it stays as it was. Waits for the last copy, which
    /// a step that was answered has long done.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] for an array that is not there or too short, [`Error::UnexpectedDType`],
    /// [`Error::Cuda`].
    pub fn write<T: Element>(&mut self, i: usize, data: &[T]) -> Result<()> {
        let start = self.part::<T>(i, data.len())?.start;
        if !self.settled {
            self.copied.wait()?;
            self.settled = true;
        }
        let bytes = size_of_val(data);
        // SAFETY: an `Element` is plain data without padding.
        let data = unsafe { std::slice::from_raw_parts(data.as_ptr().cast::<u8>(), bytes) };
        self.host.as_mut_slice()[start..start + bytes].copy_from_slice(data);
        self.dirty = self.dirty.max(start + bytes);
        Ok(())
    }

    /// Enqueue one copy of what was written since the last one.
    ///
    /// # Errors
    /// [`Error::Cuda`].
    pub fn upload(&mut self) -> Result<()> {
        if self.dirty == 0 {
            return Ok(());
        }
        let device = self.device.on_cuda_mut(OP)?;
        let to = &mut device.view_mut().part(0, self.dirty);
        // SAFETY: `host` is written by `write` only, which waits for `copied` first. `device` is read by the
        // stream's own work. Both are freed with `self`: `Pinned` waits for the device before it frees
        // anything, and is declared, so dropped, before `device`.
        unsafe { self.host.enqueue_copy(to) }?;
        if let Err(why) = self.copied.set() {
            // There is no mark to wait for, so the copy is waited for now. A device that cannot even do that is
            // lost, and copies no more.
            let _ = self.host.wait();
            return Err(why.into());
        }
        (self.settled, self.dirty) = (false, 0);
        Ok(())
    }

    /// The first `len` elements of array `i` on the device: what the last upload brought.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] for an array that is not there or too short.
    pub fn view(&self, i: usize, len: usize) -> Result<TensorRef<'_>> {
        let limit = self.parts.len();
        let out_of_range = Error::OutOfRange { op: OP, what: "array", index: i as i64, limit };
        let Part { dtype, start, capacity } = self.parts.get(i).ok_or(out_of_range)?;
        fits(len, *capacity)?;
        let size = dtype.size();
        let whole = Layout::contiguous(&[self.device.len() / size])?;
        Ok(TensorRef::over(&self.device, *dtype, whole.narrow(0, start / size, len)?))
    }

    /// Elements that array `i` has room for; 0 where there is none.
    pub fn capacity(&self, i: usize) -> usize {
        self.parts.get(i).map_or(0, |part| part.capacity)
    }

    /// Bytes on the device, and as many on the host.
    pub fn bytes(&self) -> usize {
        self.device.len()
    }
}

fn fits(len: usize, capacity: usize) -> Result<()> {
    if len <= capacity {
        return Ok(());
    }
    let (what, index) = ("length", len as i64);
    Err(Error::OutOfRange { op: OP, what, index, limit: capacity + 1 })
}
