//! Steps run by the real model: what is packed, what is chosen, and that nobody's answer depends on anybody else.

mod called;
#[path = "../../../l4-sampler/tests/support/chi_square.rs"]
mod chi_square;
mod drafts;
mod drawn;
mod ends;
mod equality;
mod failures;
mod heads;
#[path = "../support/naive.rs"]
mod naive;
mod pack;
#[path = "../../../l1-tensor/tests/support/runtime.rs"]
mod runtime;
mod sample;
mod step;
mod support;
#[path = "../support/tiny.rs"]
mod tiny;
