//! Pinned buffers that are used again.

use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use crate::error::Result;
use crate::{Gpu, Pinned};

/// Maximum number of buffers that a pool keeps while nobody uses them.
const MAX_UNUSED: usize = 16;

type Unused = Mutex<Vec<Pinned<u8>>>;

/// A source of [`PinnedBytes`] of one device. A clone is the same pool.
///
/// To pin memory, and to give it back, takes milliseconds and waits for the device. So buffers that are dropped are kept for
/// the next one of the same length. Those beyond 16 are given back by [`PinnedPool::alloc`] and not when they are dropped,
/// since another thread may do that while a graph is captured.
#[derive(Clone)]
pub struct PinnedPool {
    gpu: Arc<Gpu>,
    unused: Arc<Unused>,
}

impl PinnedPool {
    /// A pool without buffers.
    pub fn new(gpu: &Arc<Gpu>) -> Self {
        Self { gpu: Arc::clone(gpu), unused: Arc::default() }
    }

    /// A buffer of `len` bytes: zeros, or what an earlier one has left there.
    ///
    /// # Errors
    /// Errors of the driver: the system may pin no more memory.
    pub fn alloc(&self, len: usize) -> Result<PinnedBytes> {
        let mut unused = self.unused.lock().unwrap_or_else(PoisonError::into_inner);
        let fits = unused.iter().position(|bytes| bytes.as_slice().len() == len);
        let bytes = match fits {
            Some(i) => unused.swap_remove(i),
            None => Pinned::zeroed(&self.gpu, len)?,
        };
        unused.truncate(MAX_UNUSED);
        Ok(PinnedBytes { bytes: Some(bytes), pool: Arc::downgrade(&self.unused) })
    }

    /// Number of buffers that nobody uses.
    pub fn num_unused(&self) -> usize {
        self.unused.lock().unwrap_or_else(PoisonError::into_inner).len()
    }
}

/// Pinned host memory of a [`PinnedPool`]. It goes back to the pool when it is dropped.
pub struct PinnedBytes {
    /// `None` only while it is dropped.
    bytes: Option<Pinned<u8>>,
    pool: Weak<Unused>,
}

impl Deref for PinnedBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.bytes.as_ref().map_or(&[], Pinned::as_slice)
    }
}

impl DerefMut for PinnedBytes {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.bytes.as_mut().map_or(&mut [], Pinned::as_mut_slice)
    }
}

impl Drop for PinnedBytes {
    fn drop(&mut self) {
        if let Some(pool) = self.pool.upgrade() {
            pool.lock().unwrap_or_else(PoisonError::into_inner).extend(self.bytes.take());
        }
    }
}
