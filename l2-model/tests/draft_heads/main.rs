//! Draft heads against PyTorch: the heads of `fixtures/draft-heads/`, whose weights are random and exact in bf16.
//! Goldens are made by `fixtures/reference/make_draft_heads.py`.

#[path = "../judge/mod.rs"]
mod judge;

mod bits;
mod eagle;
mod medusa;
mod refused;
#[path = "../../../l1-tensor/tests/support/runtime.rs"]
mod runtime;
mod support;
