//! What the engine's thread allocates, step by step. The server's tests use it as well.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::{Arc, Mutex};

use l5_scheduler::{Scheduler, StepObserver, StepResult, StepView};

/// Counts what each thread allocates.
struct Counting;

thread_local! {
    pub static ALLOCATED: Cell<usize> = const { Cell::new(0) };
}

fn count() {
    // A thread that is ending has no counter any more.
    let _ = ALLOCATED.try_with(|n| n.set(n.get() + 1));
}

// SAFETY: every call is handed on to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's promises are those that `System` asks for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(ptr, layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: as above.
        unsafe { System.realloc(ptr, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Notes what the engine's thread has allocated by the end of each step.
pub struct Watch(pub Arc<Mutex<Vec<usize>>>);

impl StepObserver for Watch {
    fn planned(&mut self, _: &StepView<'_>, _: &Scheduler) {}

    fn applied(&mut self, _: &StepResult, _: &Scheduler) {
        self.0.lock().unwrap().push(ALLOCATED.get());
    }
}
