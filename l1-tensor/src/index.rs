//! Numbers that say which rows, tokens or places an op works on.
//!
//! The host checks them before anything runs, a device reads them while it runs: on CUDA they are
//! needed in both places. What a step needs there travels in one copy ([`Staging`](crate::Staging));
//! an op that is given host numbers alone brings them over itself and takes them away again, which
//! waits for the device: fine in a test, not in a step.

use std::fmt;

use crate::TensorRef;

/// Numbers on the host, and the same ones on the device if they are there.
///
/// Made of a slice, an array or a vector by `into()`; an op that takes `impl Into<Index<'_, u32>>`
/// takes `&[1, 2, 3]` as well.
pub struct Index<'a, T> {
    /// What is checked, and all that a CPU reads.
    pub host: &'a [T],
    /// The same numbers in the device's memory: dense, of the same type, at least as many.
    pub device: Option<TensorRef<'a>>,
}

impl<'a, T> Index<'a, T> {
    /// Numbers that are in both places.
    pub fn new(host: &'a [T], device: Option<TensorRef<'a>>) -> Self {
        Self { host, device }
    }

    /// Number of indices.
    pub fn len(&self) -> usize {
        self.host.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.host.is_empty()
    }
}

impl<T> Clone for Index<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Index<'_, T> {}

impl<T: fmt::Debug> fmt::Debug for Index<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Index").field("host", &self.host).field("device", &self.device).finish()
    }
}

impl<'a, T> From<&'a [T]> for Index<'a, T> {
    fn from(host: &'a [T]) -> Self {
        Self { host, device: None }
    }
}

impl<'a, T, const N: usize> From<&'a [T; N]> for Index<'a, T> {
    fn from(host: &'a [T; N]) -> Self {
        Self { host, device: None }
    }
}

impl<'a, T> From<&'a Vec<T>> for Index<'a, T> {
    fn from(host: &'a Vec<T>) -> Self {
        Self { host, device: None }
    }
}
