//! What activations take, as the profiling step says and as an allocator that counts has seen.

use std::alloc::{GlobalAlloc, Layout, System};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use l1_tensor::{Precision, PrecisionRequest, Runtime, RuntimeOptions};
use l2_model::{Decoder, ModelFiles, Workspace, WorkspaceSpec};
use l3_paged_kv::sizing::peak_activation;

/// Bytes in use, all threads.
struct Counting;

static LIVE: AtomicUsize = AtomicUsize::new(0);

// SAFETY: hands everything to the system's allocator and only counts.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LIVE.fetch_add(layout.size(), Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        LIVE.fetch_add(layout.size(), Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(block, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn tiny(rt: &Runtime) -> Decoder {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/tiny-llama");
    ModelFiles::open(&path).unwrap().decoder(rt).unwrap()
}

fn runtime(threads: usize) -> Runtime {
    let precision = PrecisionRequest::Exactly(Precision::F32);
    Runtime::new(RuntimeOptions { threads: Some(threads), precision, ..Default::default() })
        .unwrap()
}

fn spec(max_tokens: usize, max_rows: usize, max_context: usize) -> WorkspaceSpec {
    WorkspaceSpec { max_tokens, max_rows, max_context }
}

/// One test, as the count is of the whole process.
#[test]
fn activations_take_what_the_workspace_holds_and_what_the_allocator_saw() {
    let rt = runtime(2);
    let decoder = tiny(&rt);
    let context = decoder.config().max_context;
    let mut last = 0;
    for (tokens, rows) in [(1, 1), (8, 2), (64, 64), (3 * context + 5, 4)] {
        let spec = spec(tokens, rows, context);
        let peak = peak_activation(&decoder, &rt, spec).unwrap().0 as usize;

        let before = LIVE.load(Relaxed);
        let workspace = Workspace::new(&rt, decoder.config(), spec).unwrap();
        let took = LIVE.load(Relaxed) - before;
        let said = workspace.bytes();
        // Each buffer has up to a cache line of slack, and there are a few dozen of them.
        assert!(
            said <= took && took <= said + 8 * 1024,
            "a workspace for {tokens} tokens says it holds {said} bytes and allocated {took}"
        );
        assert!(
            said <= peak && peak <= said + said / 10,
            "a step of {tokens} tokens is said to take {peak} bytes, and begins with {said}"
        );
        assert!(peak > last, "a step of {tokens} tokens takes {peak} bytes, a smaller one {last}");
        last = peak;
    }
}
