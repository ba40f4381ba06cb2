//! One way of saying what is wrong with numbers, for every test that compares them.
//!
//! ```text
//! rms_norm on avx2, x [3, 64]: 188 of 192 elements are wrong
//!   worst at  [2, 17]
//!   expected  0.12345
//!   got       0.45678
//!   off by    0.33333 (allowed 1e-6)
//! ```

use std::fmt::Display;

use proptest::prelude::ProptestConfig;

/// How far a number may be from the one expected.
#[derive(Clone, Copy)]
pub struct Allowed {
    relative: f32,
    absolute: f32,
}

/// `relative * |expected| + absolute`.
pub fn within(relative: f32, absolute: f32) -> Allowed {
    Allowed { relative, absolute }
}

/// Not at all: the same number, to the last bit. (0 and -0 are two numbers here, NaN is one.)
pub const SAME_BITS: Allowed = Allowed { relative: 0.0, absolute: 0.0 };

impl Allowed {
    /// How much that is for one number.
    fn at(self, want: f32) -> f32 {
        self.relative * want.abs() + self.absolute
    }

    /// Whether `got` may stand for `want`: near enough, the same infinity, or NaN as well.
    pub fn accepts(self, got: f32, want: f32) -> bool {
        if got.is_nan() || want.is_nan() {
            return got.is_nan() && want.is_nan();
        }
        if self.relative == 0.0 && self.absolute == 0.0 {
            return got.to_bits() == want.to_bits();
        }
        got == want || (got - want).abs() <= self.at(want)
    }

    /// How many times what is allowed: what "worst" means.
    fn excess(self, got: f32, want: f32) -> f32 {
        let off = (got - want).abs();
        if off.is_nan() { f32::INFINITY } else { off / self.at(want).max(f32::MIN_POSITIVE) }
    }
}

/// What is wrong with `got`, the elements of an output of these dimensions; `None` if nothing is.
/// `what` says what was looked at: op, what it ran on, the input and its shape.
pub fn differences(
    what: impl Display,
    dims: &[usize],
    got: &[f32],
    want: &[f32],
    allowed: Allowed,
) -> Option<String> {
    if got.len() != want.len() {
        let (got, want) = (got.len(), want.len());
        return Some(format!(
            "{what}: another number of elements\n  expected  {want}\n  got       {got}"
        ));
    }
    let wrong = |i: &usize| !allowed.accepts(got[*i], want[*i]);
    let count = (0..got.len()).filter(wrong).count();
    let excess = |i: usize| allowed.excess(got[i], want[i]);
    // Of equally bad ones the first.
    let worst =
        (0..got.len()).filter(wrong).reduce(|a, b| if excess(b) > excess(a) { b } else { a });
    let (i, total) = (worst?, got.len());
    let (g, w) = (got[i], want[i]);
    let verb = if count == 1 { "is" } else { "are" };
    Some(format!(
        "{what}: {count} of {total} elements {verb} wrong\n  worst at  {:?}\n  expected  {w:?}\n  got       \
         {g:?}\n  off by    {:?} (allowed {:?})",
        index(i, dims),
        (g - w).abs(),
        allowed.at(w),
    ))
}

/// Panic with what [`differences`] says, if it says anything.
#[track_caller]
pub fn assert_close(
    what: impl Display,
    dims: &[usize],
    got: &[f32],
    want: &[f32],
    allowed: Allowed,
) {
    if let Some(wrong) = differences(what, dims, got, want, allowed) {
        panic!("{wrong}");
    }
}

/// Element `i`, counted row-major, by its place in every dimension.
fn index(mut i: usize, dims: &[usize]) -> Vec<usize> {
    let mut at = vec![0; dims.len()];
    for (at, dim) in at.iter_mut().zip(dims).rev() {
        *at = i % dim;
        i /= dim;
    }
    at
}

/// So many random cases. A failing one is printed, not written to a file beside the sources.
pub fn random_cases(cases: u32) -> ProptestConfig {
    ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() }
}
