//! Questions about the chapter "One token, end to end" and the fast track behind it.

mod attended_tokens;
mod cache_bytes;
mod embedding_row;
mod forward_passes;
mod largest_logit;
mod preempted;
mod qkv_numbers;
mod softmax_share;
mod step_tokens;
mod weighted_values;

use super::kind::Kind;

/// In the order of the sections.
pub const KINDS: &[Kind] = &[
    embedding_row::KIND,
    qkv_numbers::KIND,
    attended_tokens::KIND,
    softmax_share::KIND,
    weighted_values::KIND,
    largest_logit::KIND,
    forward_passes::KIND,
    cache_bytes::KIND,
    step_tokens::KIND,
    preempted::KIND,
];

/// `1 key and value head`, `2 key and value heads`.
fn kv_heads(n: usize) -> String {
    format!("{n} key and value head{}", if n == 1 { "" } else { "s" })
}

/// Words of the tiny model, in the order of its tokens.
const WORDS: [&str; 9] = ["the", "cat", "dog", "sat", "ran", "on", "mat", "road", "."];
