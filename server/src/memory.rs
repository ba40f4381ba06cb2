//! Returns the memory of large requests to the system.
//!
//! glibc keeps freed memory, in up to eight heaps for each processor, and more of it after a large block was freed:
//! after a few bodies of megabytes, the process would stay as large as it was with all of them.

/// Maximum number of heaps (glibc's arenas) of all threads together.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const MAX_HEAPS: libc::c_int = 4;

/// Allocations of at least this many bytes are mapped on their own, and unmapped when they are freed.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const MMAP_THRESHOLD_BYTES: libc::c_int = 256 << 10;

/// Maximum number of free bytes at the end of a heap.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const TRIM_THRESHOLD_BYTES: libc::c_int = 1 << 20;

/// Configures the allocator to return freed memory. Called once, before there are threads; where the system's
/// allocator is another one, nothing is changed.
pub fn configure_allocator() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: `mallopt` sets numbers of the allocator, under its lock. It ignores unknown ones.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, MAX_HEAPS);
        libc::mallopt(libc::M_MMAP_THRESHOLD, MMAP_THRESHOLD_BYTES);
        libc::mallopt(libc::M_TRIM_THRESHOLD, TRIM_THRESHOLD_BYTES);
    }
}

/// Returns free memory inside the heaps, after a large body.
pub fn trim() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: it looks through the allocator's own free memory, under its locks.
    unsafe {
        libc::malloc_trim(0);
    }
}
