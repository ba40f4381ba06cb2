//! The system's allocator, counting. A test file that includes this runs on it.

// Every test program asks for its own part of this.
#![allow(dead_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

struct Counting;

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);
static BYTES: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call is passed on unchanged to the system's allocator. `alloc_zeroed` and
// `realloc` keep their default form, which goes through `alloc`.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::SeqCst);
        BYTES.fetch_add(layout.size(), Ordering::SeqCst);
        // SAFETY: the caller's promise is the one asked for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        BYTES.fetch_sub(layout.size(), Ordering::SeqCst);
        // SAFETY: the caller's promise is the one asked for.
        unsafe { System.dealloc(block, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// The fewest allocations of `rounds` rounds of `work`. The counter sees the whole process: on a
/// busy machine a thread may start late, the test harness has one of its own, and other tests of
/// the program run beside this one. So a round that allocated is followed by a pause, in which they
/// go on. Work that allocates does so every time.
pub fn fewest_allocations(rounds: usize, mut work: impl FnMut()) -> usize {
    let one = |_| {
        let before = ALLOCATIONS.load(Ordering::SeqCst);
        work();
        let made = ALLOCATIONS.load(Ordering::SeqCst) - before;
        if made > 0 {
            std::thread::sleep(Duration::from_millis(5));
        }
        made
    };
    (0..rounds).map(one).min().unwrap_or(0)
}

/// Bytes in use now, all threads together.
pub fn bytes_in_use() -> usize {
    BYTES.load(Ordering::SeqCst)
}
