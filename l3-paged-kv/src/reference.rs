//! Paged attention as one would explain it: gather a sequence's keys and values through its table, then dense attention (l1's reference).
//! pub fn paged_attention(cache: &KvCache, meta: &ForwardMeta, params, q: &[f32], q_heads: usize, out: &mut [f32])
