//! The lines of packed weights: threads fill panels, each its own.

use std::sync::{Mutex, PoisonError};

use super::memory::{LineMemory, Place};
use super::packed::Line;
use crate::cpu::ThreadPool;
use crate::{Error, Result};

/// Makes the lines of a weight, panel after panel. `sizes` are the numbers of lines of the panels. `fill(panel, worker,
/// lines)` writes the lines of one panel, which are zeros before; it is called once for each, from all threads.
///
/// # Errors
/// The first error `fill` returns; [`Error::OutOfMemory`].
#[allow(clippy::type_complexity)] // an alias would hide what the caller has to write
pub(super) fn fill_panels<E: Send + From<Error>>(
    place: Place,
    pool: &ThreadPool,
    sizes: impl Iterator<Item = usize> + Clone,
    fill: &(dyn Fn(usize, usize, &mut [Line]) -> std::result::Result<(), E> + Sync),
) -> std::result::Result<LineMemory, E> {
    let count = sizes.clone().sum();
    let mut all = LineMemory::zeroed(place, count)?;
    let mut rest = &mut all[..];
    // One lock for each panel. It is never contended; it only gives `&mut` to the thread.
    let mut panels = Vec::new();
    for size in sizes {
        let (panel, after) = rest.split_at_mut(size);
        panels.push(Mutex::new(panel));
        rest = after;
    }
    assert!(rest.is_empty(), "the sizes of panels changed between two passes");
    pool.try_run(panels.len(), &|panel, worker| fill(panel, worker, &mut lock(&panels[panel])))?;
    drop(panels);
    Ok(all)
}

/// An empty vector with room for `count` elements.
pub(super) fn reserve<T>(count: usize) -> Result<Vec<T>> {
    let mut v = Vec::new();
    v.try_reserve_exact(count)
        .map_err(|_| Error::OutOfMemory { bytes: count.saturating_mul(size_of::<T>()) })?;
    Ok(v)
}

/// Locks; poison is ignored, since the guarded data are overwritten before they are read.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
