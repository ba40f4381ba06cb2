//! Steps run by the real model: what is packed, what is chosen, and that nobody's answer depends on anybody else.

mod called;
mod drafts;
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
