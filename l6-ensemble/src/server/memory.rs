//! Memory that large requests took goes back to the system.
//!
//! glibc keeps what was freed, in up to eight heaps for each processor, and after a large free it keeps more: a few
//! bodies of megabytes, and the process stays as large as it was with all of them.

/// Heaps for all threads together.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const HEAPS: libc::c_int = 4;

/// From so many bytes on, memory is asked of the system for itself, and given back when it is freed.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const LARGE: libc::c_int = 256 << 10;

/// So many free bytes are kept at the end of a heap.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const KEPT: libc::c_int = 1 << 20;

/// Have freed memory given back. Called once, before there are threads; where the system's allocator is another one,
/// nothing is done.
pub fn give_back_what_is_freed() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: `mallopt` sets numbers of the allocator, under its lock. One that it does not know it leaves alone.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, HEAPS);
        libc::mallopt(libc::M_MMAP_THRESHOLD, LARGE);
        libc::mallopt(libc::M_TRIM_THRESHOLD, KEPT);
    }
}

/// Give back what is free inside the heaps, behind a large piece of work.
pub fn trim() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: it looks through the allocator's own free memory, under its locks.
    unsafe {
        libc::malloc_trim(0);
    }
}
