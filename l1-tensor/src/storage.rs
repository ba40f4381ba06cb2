//! The bytes behind a tensor.

use std::alloc::{Layout as AllocLayout, alloc_zeroed, dealloc};
use std::fmt;
use std::ptr::NonNull;

use crate::{Device, Error, Result};

/// Owned host memory, zeroed, aligned to a cache line so that a full AVX-512 vector never
/// straddles two.
///
/// A large buffer costs nothing until it is touched: the block comes from the allocator's zeroing
/// path, which hands out untouched pages. (Asking that path for 64-byte alignment would make it
/// clear, and so touch, every page by hand; hence the spare cache line and the inner offset.)
pub struct AlignedBytes {
    block: NonNull<u8>,
    block_size: usize,
    /// From the block's start to the first aligned byte.
    skip: usize,
    len: usize,
}

/// What the allocator gives without extra work.
const BLOCK_ALIGN: usize = 16;

/// The alignment of every buffer: one cache line, one AVX-512 vector.
pub const ALIGN: usize = 64;

impl AlignedBytes {
    /// `len` zero bytes.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] when the allocator has no such block.
    pub fn zeroed(len: usize) -> Result<Self> {
        let oom = Error::OutOfMemory { bytes: len };
        let Some(block_size) = len.checked_add(ALIGN) else { return Err(oom) };
        let Ok(layout) = AllocLayout::from_size_align(block_size, BLOCK_ALIGN) else {
            return Err(oom);
        };
        // SAFETY: the layout has a non-zero size.
        let Some(block) = NonNull::new(unsafe { alloc_zeroed(layout) }) else { return Err(oom) };
        let skip = block.as_ptr().align_offset(ALIGN);
        Ok(Self { block, block_size, skip, len })
    }

    fn start(&self) -> *mut u8 {
        // SAFETY: `skip < ALIGN`, and the block is `ALIGN` bytes longer than `len`.
        unsafe { self.block.as_ptr().add(self.skip) }
    }

    /// The bytes.
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: the block holds `len` initialised bytes from `start` on for as long as `self` lives.
        unsafe { std::slice::from_raw_parts(self.start(), self.len) }
    }

    /// The bytes, to write.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as above, and `&mut self` makes this the only reference.
        unsafe { std::slice::from_raw_parts_mut(self.start(), self.len) }
    }
}

impl Drop for AlignedBytes {
    fn drop(&mut self) {
        // SAFETY: the same size and alignment that `zeroed` allocated with.
        unsafe {
            let layout = AllocLayout::from_size_align_unchecked(self.block_size, BLOCK_ALIGN);
            dealloc(self.block.as_ptr(), layout);
        }
    }
}

// SAFETY: plain bytes, owned by one value; sharing follows the usual reference rules.
unsafe impl Send for AlignedBytes {}
// SAFETY: as above.
unsafe impl Sync for AlignedBytes {}

/// The memory of a tensor: one variant for each kind of device.
pub enum Storage {
    /// Host memory owned by the tensor.
    Cpu(AlignedBytes),
    /// Memory of a CUDA device, owned by the tensor. The host cannot read it in place.
    Cuda(kernels::Buffer),
}

impl Storage {
    /// Zeroed memory of a device.
    pub(crate) fn zeroed(device: Device, bytes: usize) -> Result<Self> {
        Ok(match device {
            Device::Cpu => Storage::Cpu(AlignedBytes::zeroed(bytes)?),
            Device::Cuda(n) => {
                Storage::Cuda(kernels::Buffer::zeroed(&kernels::Gpu::open(n)?, bytes)?)
            }
        })
    }

    /// Device that holds the memory.
    pub fn device(&self) -> Device {
        match self {
            Storage::Cpu(_) => Device::Cpu,
            Storage::Cuda(b) => Device::Cuda(b.gpu().ordinal()),
        }
    }

    /// The bytes of host memory; none for a device's, which [`Storage::on_host`] refuses before.
    pub(crate) fn bytes(&self) -> &[u8] {
        match self {
            Storage::Cpu(b) => b.as_slice(),
            Storage::Cuda(_) => &[],
        }
    }

    /// As [`Storage::bytes`], to write.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        match self {
            Storage::Cpu(b) => b.as_mut_slice(),
            Storage::Cuda(_) => &mut [],
        }
    }

    /// Refuse a device's memory: everything that hands out slices asks here first.
    pub(crate) fn on_host(&self, op: &'static str) -> Result<()> {
        match self {
            Storage::Cpu(_) => Ok(()),
            Storage::Cuda(_) => Err(Error::Device {
                device: self.device().to_string(),
                why: format!("{op} reads host memory, and this tensor is the device's"),
            }),
        }
    }

    /// The device's memory, or why there is none.
    pub(crate) fn on_cuda(&self, op: &'static str) -> Result<&kernels::Buffer> {
        match self {
            Storage::Cuda(b) => Ok(b),
            Storage::Cpu(_) => Err(not_on_cuda(op)),
        }
    }

    /// As [`Storage::on_cuda`], to write.
    pub(crate) fn on_cuda_mut(&mut self, op: &'static str) -> Result<&mut kernels::Buffer> {
        match self {
            Storage::Cuda(b) => Ok(b),
            Storage::Cpu(_) => Err(not_on_cuda(op)),
        }
    }

    /// Size in bytes.
    pub fn len(&self) -> usize {
        match self {
            Storage::Cpu(b) => b.as_slice().len(),
            Storage::Cuda(b) => b.len(),
        }
    }

    /// Whether there are no bytes at all.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl fmt::Debug for Storage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes on {}", self.len(), self.device())
    }
}

fn not_on_cuda(op: &'static str) -> Error {
    let why = format!("{op} runs on CUDA, and this is host memory: Tensor::to_device brings it");
    Error::Device { device: Device::Cpu.to_string(), why }
}
