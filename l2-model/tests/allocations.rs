//! A steady decode step allocates nothing: counted, with an allocator that counts.

use std::alloc::{GlobalAlloc, Layout, System};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use l1_tensor::{Precision, PrecisionRequest, Runtime, RuntimeOptions};
use l2_model::{ModelFiles, Session};

struct Counting;

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call goes to the system allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: passed on.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn a_steady_decode_step_allocates_nothing() {
    for (name, precision, threads) in [
        ("tiny-llama", Precision::F32, 1),
        ("tiny-llama", Precision::Bf16, 2),
        ("tiny-mistral", Precision::Bf16, 1),
        ("tiny-qwen2", Precision::F32, 2),
        ("tiny-qwen3", Precision::Bf16, 2),
    ] {
        let rt = Runtime::new(RuntimeOptions {
            precision: PrecisionRequest::Exactly(precision),
            threads: Some(threads),
            ..Default::default()
        })
        .unwrap();
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures").join(name);
        let decoder = ModelFiles::open(&path).unwrap().decoder(&rt).unwrap();
        let mut session = Session::new(&decoder, &rt, 64).unwrap();
        session.feed(&[1, 2, 3]).unwrap();
        session.feed(&[4]).unwrap();
        // The best of a few: the counter also sees threads that are just starting, and the test
        // harness. A step that allocates does so every time.
        let made = (0..5).map(|_| {
            session.rollback(4).unwrap();
            let before = ALLOCATIONS.load(Ordering::SeqCst);
            for token in 5..40 {
                session.feed(&[token]).unwrap();
            }
            ALLOCATIONS.load(Ordering::SeqCst) - before
        });
        assert_eq!(made.min(), Some(0), "{name}, {precision}, {threads} threads");
    }
}
