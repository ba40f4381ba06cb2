//! Attention: a weighted mean of the values of the tokens so far.

use crate::ops::softmax;

/// Shape of attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heads {
    /// Number of query heads.
    pub query: usize,
    /// Number of key and value heads: a divisor of `query`. With fewer than `query` it is grouped-query attention.
    pub kv: usize,
    /// Number of elements of a head.
    pub dim: usize,
}

impl Heads {
    /// The key and value head that query head `head` reads: the first `query / kv` query heads read head 0, and so on.
    pub fn kv_head(&self, head: usize) -> usize {
        head / (self.query / self.kv)
    }
}

/// Attention of one token: for each query head, the scores of all keys, their softmax, and the mean of the values with
/// these weights.
///
/// `q` has `query * dim` elements. `keys` and `values` have a row of `kv * dim` elements for each token so far, the new one
/// included. A score is `q . k / sqrt(dim)`. There is no mask here: later tokens are simply not in `keys`. Returns
/// `query * dim` elements.
///
/// ```
/// use nano::attention::{Heads, attend};
///
/// let heads = Heads { query: 1, kv: 1, dim: 2 };
/// // The query is at right angles to both keys, so both scores are 0 and both values count alike.
/// let out = attend(&[0.0, 1.0], &[&[1.0, 0.0], &[5.0, 0.0]], &[&[2.0, 4.0], &[4.0, 0.0]], heads);
/// assert_eq!(out, [3.0, 2.0]);
/// ```
pub fn attend(q: &[f32], keys: &[&[f32]], values: &[&[f32]], heads: Heads) -> Vec<f32> {
    // exercise nano.attention
    let mut out = vec![0.0; heads.query * heads.dim];
    for head in 0..heads.query {
        let own = head * heads.dim..(head + 1) * heads.dim;
        let kv_head = heads.kv_head(head);
        let shared = kv_head * heads.dim..(kv_head + 1) * heads.dim;
        let q = &q[own.clone()];
        let dot = |k: &[f32]| q.iter().zip(k).map(|(q, k)| q * k).sum::<f32>();
        let scale = (heads.dim as f32).sqrt();
        let mut weights: Vec<f32> = keys.iter().map(|k| dot(&k[shared.clone()]) / scale).collect();
        softmax(&mut weights);
        for (weight, value) in weights.iter().zip(values) {
            for (out, v) in out[own.clone()].iter_mut().zip(&value[shared.clone()]) {
                *out += weight * v;
            }
        }
    }
    out
    // end of exercise
}
