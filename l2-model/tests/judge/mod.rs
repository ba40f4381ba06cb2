//! One way of saying what is wrong with many numbers, for all tests of this crate.
//!
//! ```text
//! layers.0.attn of tiny-llama in f32, [24, 96]: 188 of 2304 elements are wrong
//!   worst at  [2, 17]
//!   expected  0.12345
//!   got       0.45678
//!   off by    0.33333 (allowed 0.0001)
//! ```

// Every test binary uses its own part of this.
#![allow(dead_code, unused_imports, unused_macros)]

use std::fmt::Display;

/// Asserts that `got`, of shape `dims`, is within `allowed` of `expected`, element by element.
/// `what` says what was computed: the tap or op, the model, the precision.
#[track_caller]
pub fn close(what: &str, dims: &[usize], got: &[f32], expected: &[f32], allowed: f32) {
    let words = if allowed == 0.0 { "nothing".into() } else { format!("{allowed:e}") };
    judge(what, dims, got, expected, &words, |error| error <= allowed);
}

/// Asserts that `got` has the bits of `expected`.
#[track_caller]
pub fn same_bits(what: &str, dims: &[usize], got: &[f32], expected: &[f32]) {
    if got.iter().map(|x| x.to_bits()).ne(expected.iter().map(|x| x.to_bits())) {
        judge(what, dims, got, expected, "nothing, the bits must be equal", |error| error == 0.0);
        panic!("{what}, {dims:?}: the sign of a zero or the bits of a NaN differ");
    }
}

/// The value of something that must not fail; `what` says what was tried.
#[track_caller]
pub fn works<T, E: Display>(what: impl Display, result: Result<T, E>) -> T {
    result.unwrap_or_else(|e| panic!("{what}\n  expected  no error\n  got       {e}"))
}

/// The error of something that must be refused; `what` says what it was, `expected` with which error.
#[track_caller]
pub fn refused<T, E>(what: impl Display, expected: &str, result: Result<T, E>) -> E {
    match result {
        Err(error) => error,
        Ok(_) => panic!(
            "{what}: accepted, and must be refused\n  expected  {expected}\n  got       no error"
        ),
    }
}

/// Asserts that something is refused with an error of this shape, and gives the error.
macro_rules! fails_with {
    ($what:expr, $result:expr, $pattern:pat $(if $guard:expr)?) => {{
        let what = $what;
        let expected = stringify!($pattern $(if $guard)?);
        let error = crate::judge::refused(&what, expected, $result);
        assert!(
            matches!(&error, $pattern $(if $guard)?),
            "{what}: refused, but with another error\n  expected  {expected}\n  got       {error:?}"
        );
        error
    }};
}
pub(crate) use fails_with;

/// Asserts that two lists of token ids are equal, and says where they part.
#[track_caller]
pub fn same_tokens(what: &str, got: &[u32], expected: &[u32]) {
    let part = got.iter().zip(expected).take_while(|(g, e)| g == e).count();
    assert!(
        got == expected,
        "{what}: token {part} is the first that differs\n  expected  {:?}\n  got       {:?}",
        &expected[part..expected.len().min(part + 8)],
        &got[part..got.len().min(part + 8)],
    );
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
