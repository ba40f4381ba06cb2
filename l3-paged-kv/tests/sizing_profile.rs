//! What activations take, as the profiling step says and as an allocator that counts has seen.

#[path = "../../l1-tensor/tests/support/counting.rs"]
mod counting;
mod models;

use counting::bytes_in_use;
use l1_tensor::Precision;
use l2_model::{Workspace, WorkspaceSpec};
use l3_paged_kv::sizing::peak_activation;
use models::{load, runtime};

fn spec(max_tokens: usize, max_rows: usize, max_context: usize) -> WorkspaceSpec {
    WorkspaceSpec { max_tokens, max_rows, max_context }
}

/// One test, as the count is of the whole process.
#[test]
fn activations_take_what_the_workspace_holds_and_what_the_allocator_saw() {
    let rt = runtime(Precision::F32, 2);
    let decoder = load("tiny-llama", &rt);
    let context = decoder.config().max_context;
    let mut last = 0;
    for (tokens, rows) in [(1, 1), (8, 2), (64, 64), (3 * context + 5, 4)] {
        let spec = spec(tokens, rows, context);
        let peak = peak_activation(&decoder, &rt, spec, None).unwrap().0 as usize;

        let before = bytes_in_use();
        let workspace = Workspace::new(&rt, decoder.config(), spec).unwrap();
        let took = bytes_in_use() - before;
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
        let adapted = peak_activation(&decoder, &rt, spec, Some(8)).unwrap().0 as usize;
        assert!(adapted >= peak + tokens * 8 * 4, "{peak} bytes, and {adapted} with adapters");
        assert!(peak > last, "a step of {tokens} tokens takes {peak} bytes, a smaller one {last}");
        last = peak;
    }
}
