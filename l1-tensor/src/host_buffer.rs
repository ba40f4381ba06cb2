//! Host memory for bytes that come from a device and go there again.

use std::fmt;
use std::ops::{Deref, DerefMut};

use kernels::{Gpu, PinnedBytes, PinnedPool};

use crate::{Device, Result};

/// A source of [`HostBuffer`]s for one device.
///
/// For CUDA they are pinned: the device copies pinned memory by itself, at the speed of the bus, where other memory is
/// copied twice. They are used again when they are dropped. A clone is the same source.
#[derive(Clone)]
pub struct HostBuffers(Option<PinnedPool>);

impl HostBuffers {
    /// Buffers for a device.
    ///
    /// # Errors
    /// [`Error::Cuda`](crate::Error::Cuda) for a device that cannot be opened.
    pub fn new(device: Device) -> Result<Self> {
        Ok(Self(match device {
            Device::Cpu => None,
            Device::Cuda(n) => Some(PinnedPool::new(&Gpu::open(n)?)),
        }))
    }

    /// A buffer of `len` bytes, whatever they are. If no more memory can be pinned, it is ordinary memory.
    pub fn alloc(&self, len: usize) -> HostBuffer {
        HostBuffer(match self.0.as_ref().map(|pool| pool.alloc(len)) {
            Some(Ok(bytes)) => Memory::Pinned(bytes),
            Some(Err(_)) | None => Memory::Pageable(vec![0; len]),
        })
    }
}

/// Host memory: pinned, or as the allocator gives it.
pub struct HostBuffer(Memory);

enum Memory {
    Pageable(Vec<u8>),
    Pinned(PinnedBytes),
}

impl HostBuffer {
    /// Whether its pages are never moved.
    pub fn is_pinned(&self) -> bool {
        matches!(self.0, Memory::Pinned(_))
    }
}

impl From<Vec<u8>> for HostBuffer {
    fn from(bytes: Vec<u8>) -> Self {
        Self(Memory::Pageable(bytes))
    }
}

impl Deref for HostBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.0 {
            Memory::Pageable(bytes) => bytes,
            Memory::Pinned(bytes) => bytes,
        }
    }
}

impl DerefMut for HostBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        match &mut self.0 {
            Memory::Pageable(bytes) => bytes,
            Memory::Pinned(bytes) => bytes,
        }
    }
}

impl fmt::Debug for HostBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pinned = if self.is_pinned() { "pinned " } else { "" };
        write!(f, "HostBuffer({} {pinned}bytes)", self.len())
    }
}
