//! What a batch says of itself, and keys and values in blocks.

#[path = "../../../l2-model/tests/judge/mod.rs"]
mod judge;
#[path = "../models/mod.rs"]
mod models;
mod paging;

mod draft_heads;
mod exchange;
mod invariance;
mod meta;
mod paged_attention;
mod recurrent;
mod reference;
mod state;
mod tiny_models;
