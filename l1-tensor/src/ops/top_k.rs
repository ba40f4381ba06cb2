//! The k largest elements: candidates for a sampler, and the output of `strata logits`.
//!
//! A heap would take `O(n log k)`. Here candidates are collected in a buffer of `2 k`. When it is full, a
//! selection (quickselect) keeps the better half, and from then on all elements not above the worst of that
//! half are skipped. Each selection is `O(k)` and comes after at least `k` collected elements, so all of it
//! is `O(n + k log k)`, the last term for the final sort.

use super::rows::Src;
use crate::{Device, Error, Result, TensorRef};

/// Memory of [`top_k`], kept by the caller so that a decode step allocates nothing.
#[derive(Debug, Default)]
pub struct TopKScratch {
    /// Value and index in one number that sorts as the pair does: see [`rank`].
    candidates: Vec<u64>,
}

impl TopKScratch {
    /// Scratch with room for this `k` (a larger one is allocated on demand).
    pub fn new(k: usize) -> Self {
        Self { candidates: Vec::with_capacity(k.saturating_mul(2)) }
    }
}

/// Scalar reference of [`top_k`]: sorts all elements and keeps the first `k`.
pub fn top_k_reference(x: &[f32], k: usize) -> Vec<(u32, f32)> {
    // exercise l1.select
    let mut all: Vec<(u32, f32)> = (0u32..).zip(x.iter().copied()).collect();
    // The sort is stable, so equal values stay in the order of their indices.
    all.sort_by(|(_, a), (_, b)| match (a.is_nan(), b.is_nan()) {
        (false, false) => b.partial_cmp(a).unwrap_or(std::cmp::Ordering::Equal),
        (a, b) => a.cmp(&b),
    });
    all.truncate(k);
    all
    // end of exercise
}

/// Writes the `k = values.len()` largest elements of `x: [N]` (f32) to `values`, largest first, and their
/// indices to `indices`. Returns how many there are: `min(k, N)`; the other entries are unchanged.
///
/// Of equal elements the lower index comes first (0 and -0 are equal). NaN ranks below -inf. A row on a
/// device is copied to the host first.
///
/// # Errors
/// [`Error::UnsupportedLayout`] unless `x` has one dimension, [`Error::UnexpectedDType`],
/// [`Error::BadParameter`] when `indices` is not as long as `values`.
pub fn top_k(
    x: TensorRef<'_>,
    values: &mut [f32],
    indices: &mut [u32],
    scratch: &mut TopKScratch,
) -> Result<usize> {
    const OP: &str = "top_k";
    let layout = *x.layout();
    if layout.rank() != 1 {
        let why = "needs one row: call it once for each row";
        return Err(Error::UnsupportedLayout { op: OP, why, layout });
    }
    if values.len() != indices.len() {
        let (v, i) = (values.len(), indices.len());
        let why = format!("values ({v}) and indices ({i}) must have the same length");
        return Err(Error::BadParameter { op: OP, why });
    }
    let fetched;
    let x = if x.device() == Device::Cpu {
        Src::<f32>::new(OP, x)?.row(0)
    } else {
        x.is_of::<f32>(OP)?;
        fetched = x.to_vec_f32()?;
        fetched.as_slice()
    };
    let k = values.len().min(x.len());
    if k == 0 {
        return Ok(0);
    }
    let kept = &mut scratch.candidates;
    kept.clear();
    kept.reserve(2 * k);
    // exercise l1.select
    // Only what ranks above this can still be among the first k: later equals lose by their index.
    let mut bar = None;
    let mut index = 0u32;
    for chunk in x.chunks(16) {
        if bar.is_none_or(|bar| chunk.iter().fold(false, |any, v| any | (order(*v) > bar))) {
            for (i, v) in (index..).zip(chunk) {
                if bar.is_some_and(|bar| order(*v) <= bar) {
                    continue;
                }
                if kept.len() == 2 * k {
                    bar = Some(keep_best(kept, k));
                }
                if bar.is_none_or(|bar| order(*v) > bar) {
                    kept.push(rank(*v, i));
                }
            }
        }
        index += chunk.len() as u32;
    }
    if kept.len() > k {
        keep_best(kept, k);
    }
    kept.sort_unstable_by(|a, b| b.cmp(a));
    for ((rank, v), i) in kept.iter().zip(values).zip(indices) {
        *i = !(*rank as u32);
        *v = x[*i as usize];
    }
    Ok(k)
    // end of exercise
}

/// Drops all but the first `k`; returns the [`order`] of the last of these.
fn keep_best(kept: &mut Vec<u64>, k: usize) -> u32 {
    // exercise l1.select
    let (_, last, _) = kept.select_nth_unstable_by(k - 1, |a, b| b.cmp(a));
    let bar = (*last >> 32) as u32;
    kept.truncate(k);
    bar
    // end of exercise
}

/// An integer that sorts as the number does: NaN is 0, below -inf; -0 is 0.
fn order(v: f32) -> u32 {
    // exercise l1.select
    if v.is_nan() {
        return 0;
    }
    let bits = (v + 0.0).to_bits(); // -0 + 0 is +0.
    // Positive numbers sort by their bits, above the negative ones, whose bits sort backwards.
    if bits >> 31 == 0 { bits | 1 << 31 } else { !bits }
    // end of exercise
}

/// Value first, then the lower index.
fn rank(v: f32, index: u32) -> u64 {
    // exercise l1.select
    u64::from(order(v)) << 32 | u64::from(!index)
    // end of exercise
}
