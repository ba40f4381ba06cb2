//! The bytes behind a tensor.

use std::alloc::{Layout as AllocLayout, alloc_zeroed, dealloc};
use std::ptr::NonNull;

use crate::{Error, Result};

/// Owned host memory, zeroed, aligned to a cache line so that a full AVX-512 vector never
/// straddles two.
pub struct AlignedBytes {
    ptr: NonNull<u8>,
    len: usize,
}

/// The alignment of every buffer: one cache line, one AVX-512 vector.
pub const ALIGN: usize = 64;

impl AlignedBytes {
    /// `len` zero bytes.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] when the allocator has no such block.
    pub fn zeroed(len: usize) -> Result<Self> {
        let layout = AllocLayout::from_size_align(len.max(ALIGN), ALIGN)
            .map_err(|_| Error::OutOfMemory { bytes: len })?;
        // SAFETY: the layout has a non-zero size.
        let ptr = unsafe { alloc_zeroed(layout) };
        let ptr = NonNull::new(ptr).ok_or(Error::OutOfMemory { bytes: len })?;
        Ok(Self { ptr, len })
    }

    /// The bytes.
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: `ptr` owns `len` initialised bytes for as long as `self` lives.
        unsafe { std::slice::from_raw_parts(self.ptr.as_ptr(), self.len) }
    }

    /// The bytes, to write.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as above, and `&mut self` makes this the only reference.
        unsafe { std::slice::from_raw_parts_mut(self.ptr.as_ptr(), self.len) }
    }
}

impl Drop for AlignedBytes {
    fn drop(&mut self) {
        // SAFETY: the same size and alignment that `zeroed` allocated with.
        unsafe {
            let layout = AllocLayout::from_size_align_unchecked(self.len.max(ALIGN), ALIGN);
            dealloc(self.ptr.as_ptr(), layout);
        }
    }
}

// SAFETY: plain bytes, owned by one value; sharing follows the usual reference rules.
unsafe impl Send for AlignedBytes {}
// SAFETY: as above.
unsafe impl Sync for AlignedBytes {}

/// The memory of a tensor. A device's memory becomes another variant; ops match on it.
pub enum Storage {
    /// Host memory owned by the tensor.
    Cpu(AlignedBytes),
}

impl Storage {
    pub(crate) fn bytes(&self) -> &[u8] {
        match self {
            Storage::Cpu(b) => b.as_slice(),
        }
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        match self {
            Storage::Cpu(b) => b.as_mut_slice(),
        }
    }

    /// Size in bytes.
    pub fn len(&self) -> usize {
        self.bytes().len()
    }

    /// Whether there are no bytes at all.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
