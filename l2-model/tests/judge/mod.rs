//! One way of saying what is wrong with many numbers, for all tests of this crate.
//!
//! ```text
//! layers.0.attn of tiny-llama in f32, [24, 96]: 188 of 2304 elements are wrong
//!   worst at  [2, 17]
//!   expected  0.12345
//!   got       0.45678
//!   off by    0.33333 (allowed 0.0001)
//! ```

#![allow(dead_code)] // Every test binary uses its own part of this.

/// Asserts that `got`, of shape `dims`, is within `allowed` of `expected`, element by element.
/// `what` says what was computed: the tap or op, the model, the precision.
#[track_caller]
pub fn close(what: &str, dims: &[usize], got: &[f32], expected: &[f32], allowed: f32) {
    judge(what, dims, got, expected, &format!("{allowed:e}"), |error| error <= allowed);
}

/// Asserts that `got` has the bits of `expected`.
#[track_caller]
pub fn same_bits(what: &str, dims: &[usize], got: &[f32], expected: &[f32]) {
    if got.iter().map(|x| x.to_bits()).ne(expected.iter().map(|x| x.to_bits())) {
        judge(what, dims, got, expected, "nothing, the bits must be equal", |error| error == 0.0);
        panic!("{what}, {dims:?}: the sign of a zero or the bits of a NaN differ");
    }
}

#[track_caller]
fn judge(
    what: &str,
    dims: &[usize],
    got: &[f32],
    expected: &[f32],
    allowed: &str,
    fits: impl Fn(f32) -> bool,
) {
    let count: usize = dims.iter().product();
    assert!(
        got.len() == count && expected.len() == count,
        "{what}, {dims:?}: another number of elements\n  expected  {}\n  got       {}",
        expected.len(),
        got.len()
    );
    // A NaN on one side only is as wrong as can be.
    let error = |i: usize| match (got[i].is_nan(), expected[i].is_nan()) {
        (false, false) if got[i] == expected[i] => 0.0,
        (false, false) => (got[i] - expected[i]).abs(),
        (true, true) => 0.0,
        _ => f32::INFINITY,
    };
    let wrong: Vec<usize> = (0..count).filter(|i| !fits(error(*i))).collect();
    let Some(worst) = wrong.iter().copied().max_by(|a, b| error(*a).total_cmp(&error(*b))) else {
        return;
    };
    panic!(
        "{what}, {dims:?}: {} of {count} elements are wrong\n  worst at  {:?}\n  expected  {}\n  got       {}\n  off by    {} (allowed {allowed})",
        wrong.len(),
        place(worst, dims),
        expected[worst],
        got[worst],
        error(worst),
    );
}

/// The multi-dimensional index of element `i`.
fn place(mut i: usize, dims: &[usize]) -> Vec<usize> {
    let mut at = vec![0; dims.len()];
    for (at, dim) in at.iter_mut().zip(dims).rev() {
        *at = i % dim;
        i /= dim;
    }
    at
}
