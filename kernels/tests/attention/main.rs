//! Attention over blocks against softmax written out: rows, decode rows in splits, tiles of queries.

mod case;
#[path = "../common/mod.rs"]
mod common;

mod decode;
mod invariance;
mod prefill;
mod random;
mod refusals;
mod rows;
