//! What an estimator answers.

/// Duration in seconds from which on a tool is slow, as for the fixed time to live of `continuum`.
pub(super) const LONG_SECONDS: f64 = 2.0;

/// Seconds for which blocks are held after a call that is known to be fast.
pub(super) const FAST_PIN: f64 = 3.0;

/// Estimate of a tool call's duration. (An estimator that does not know has none.)
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Estimate {
    /// The job is back soon: its blocks are held for so many seconds.
    Fast(f64),
    /// The job stays away: its blocks are free at once.
    Slow,
    /// Either: its blocks are held for the time to live of `continuum`.
    Uncertain,
}
