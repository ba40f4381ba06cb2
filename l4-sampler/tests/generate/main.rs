//! One prompt and its answers, on tiny models, over contiguous and paged state.

mod choices;
mod conversations;
mod ends;
mod greedy;
mod guided;
mod ranking;
mod refusals;
#[path = "../../../l3-paged-kv/tests/support/runtime.rs"]
mod runtime;
mod support;
mod work;
