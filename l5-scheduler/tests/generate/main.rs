//! One prompt and its choices, on tiny models, against the naive loop.

mod choices;
mod conversations;
mod ends;
mod greedy;
mod guided;
#[path = "../support/naive.rs"]
mod naive;
mod ranking;
mod refusals;
#[path = "../../../l1-tensor/tests/support/runtime.rs"]
mod runtime;
mod support;
#[path = "../support/tiny.rs"]
mod tiny;
mod work;
