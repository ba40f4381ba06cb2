//! One way of saying what is wrong with numbers, for every test of this layer that compares them.
//!
//! ```text
//! top_p, vocab 64, p 0.9: 3 of 64 probabilities are wrong
//!   worst at  token 17
//!   expected  0.12345
//!   got       0.45678
//!   off by    0.33333 (allowed 1e-6)
//! ```

#![allow(dead_code)] // Every test program uses its own part of this.

use std::fmt::Display;

/// How far a number may be from the one expected: `relative * |expected| + absolute`.
#[derive(Clone, Copy, Debug)]
pub struct Allowed {
    /// As a part of the number expected.
    pub relative: f64,
    /// Besides.
    pub absolute: f64,
}

/// `relative * |expected| + absolute`.
pub fn within(relative: f64, absolute: f64) -> Allowed {
    Allowed { relative, absolute }
}

/// Not at all.
pub const EQUAL: Allowed = Allowed { relative: 0.0, absolute: 0.0 };

impl Allowed {
    fn at(self, want: f64) -> f64 {
        self.relative * want.abs() + self.absolute
    }

    /// Whether `got` may stand for `want`: near enough, the same infinity, or NaN as well.
    pub fn accepts(self, got: f64, want: f64) -> bool {
        if got.is_nan() || want.is_nan() {
            return got.is_nan() && want.is_nan();
        }
        // An infinity is near to nothing but itself.
        got == want || (want.is_finite() && (got - want).abs() <= self.at(want))
    }

    /// How many times what is allowed: what "worst" means.
    fn excess(self, got: f64, want: f64) -> f64 {
        let off = (got - want).abs();
        if off.is_finite() { off / self.at(want).max(f64::MIN_POSITIVE) } else { f64::INFINITY }
    }
}

/// Panic with a readable message unless every number is what it should be. `what` says what was
/// looked at (processor, what it ran on, the row), `noun` what the numbers are ("probabilities").
pub fn judge<T: Copy + Into<f64>>(
    what: impl Display,
    noun: &str,
    got: &[T],
    want: &[T],
    allowed: Allowed,
) {
    if let Some(message) = differences(what, noun, got, want, allowed) {
        panic!("{message}");
    }
}

/// What [`judge`] would say; `None` if all is well.
pub fn differences<T: Copy + Into<f64>>(
    what: impl Display,
    noun: &str,
    got: &[T],
    want: &[T],
    allowed: Allowed,
) -> Option<String> {
    if got.len() != want.len() {
        let (got, want) = (got.len(), want.len());
        return Some(format!(
            "{what}: another number of {noun}\n  expected  {want}\n  got       {got}"
        ));
    }
    let pair = |i: usize| -> (f64, f64) { (got[i].into(), want[i].into()) };
    let wrong = |i: &usize| !allowed.accepts(pair(*i).0, pair(*i).1);
    let excess = |i: usize| allowed.excess(pair(i).0, pair(i).1);
    let count = (0..got.len()).filter(wrong).count();
    // Of equally bad ones the first.
    let worst =
        (0..got.len()).filter(wrong).reduce(|a, b| if excess(b) > excess(a) { b } else { a })?;
    let ((g, w), total) = (pair(worst), got.len());
    let verb = if count == 1 { "is" } else { "are" };
    Some(format!(
        "{what}: {count} of {total} {noun} {verb} wrong\n  worst at  token {worst}\n  expected  {w:?}\n  \
         got       {g:?}\n  off by    {:?} (allowed {:?})",
        (g - w).abs(),
        allowed.at(w),
    ))
}

/// Panic unless two rows are the same to the last bit (0 and -0 are two numbers here).
pub fn same_bits(what: impl Display, got: &[f32], want: &[f32]) {
    assert_eq!(got.len(), want.len(), "{what}: the length of the row");
    let changed = |i: &usize| got[*i].to_bits() != want[*i].to_bits();
    let count = (0..got.len()).filter(changed).count();
    if let Some(i) = (0..got.len()).find(changed) {
        let (g, w, total) = (got[i], want[i], got.len());
        panic!(
            "{what}: {count} of {total} numbers differ in their bits\n  first at  token {i}\n  expected  \
             {w:?} ({:#010x})\n  got       {g:?} ({:#010x})",
            w.to_bits(),
            g.to_bits()
        );
    }
}
