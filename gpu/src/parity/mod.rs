//! The device against the CPU.
//!
//! Each [`Check`] computes something twice: on the device, with the kernels of `kernels/cu`, and on the CPU,
//! with layer 1, whose ops are themselves tested against scalar references and against transformers.

mod attention;
mod model;
mod nvfp4;
mod ops;
mod select;

use std::fmt;
use std::time::Instant;

use anyhow::{Result, ensure};
use l1_tensor::{Precision, Runtime};
use serde::Serialize;

use crate::Context;

/// A property that must hold on every device.
pub struct Check {
    /// Name, in words that make a list of failures a diagnosis.
    pub name: &'static str,
    /// Runs the check. An error says what was wrong, with the numbers.
    pub run: fn(&Context) -> Result<Outcome>,
}

/// Observations of a check that holds.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Outcome {
    /// Number of cases.
    pub cases: usize,
    /// Largest difference of any number from the CPU's.
    pub worst: f64,
    /// Further observations.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub note: String,
}

impl Outcome {
    /// Adds a case.
    pub fn add(&mut self, difference: f64) {
        self.cases += 1;
        self.worst = self.worst.max(difference);
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} cases, off by {:.1e} at most", self.cases, self.worst)?;
        if self.note.is_empty() { Ok(()) } else { write!(f, "; {}", self.note) }
    }
}

/// All checks, the simplest first.
pub fn checks() -> impl Iterator<Item = &'static Check> {
    [ops::CHECKS, nvfp4::CHECKS, attention::CHECKS, select::CHECKS, model::CHECKS]
        .into_iter()
        .flatten()
}

/// Result of one check.
#[derive(Clone, Debug, Serialize)]
pub struct Verdict {
    /// Name of the check.
    pub name: &'static str,
    /// Whether the check holds.
    pub holds: bool,
    /// Observations of the check, if it holds.
    #[serde(flatten)]
    pub outcome: Outcome,
    /// Error of the check, if it does not hold.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// Duration of the check.
    pub seconds: f64,
}

/// Runs all checks with these names and reports the result of each.
pub fn run(
    ctx: &Context,
    wanted: impl Fn(&str) -> bool,
    mut said: impl FnMut(&Verdict),
) -> Vec<Verdict> {
    let mut verdicts = Vec::new();
    for check in checks().filter(|check| wanted(check.name)) {
        let started = Instant::now();
        let result = (check.run)(ctx);
        let verdict = Verdict {
            name: check.name,
            holds: result.is_ok(),
            why: result.as_ref().err().map(|e| format!("{e:#}")),
            outcome: result.unwrap_or_default(),
            seconds: started.elapsed().as_secs_f64(),
        };
        said(&verdict);
        verdicts.push(verdict);
    }
    verdicts
}

/// Tolerance between two results: `absolute + relative * |wanted|`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tolerance {
    pub absolute: f32,
    pub relative: f32,
}

impl Tolerance {
    /// Tolerance for sums of f32 in another order.
    pub(crate) const F32: Self = Self { absolute: 2e-5, relative: 2e-5 };
    /// Tolerance for a result rounded to bf16: one unit in its last place, in either direction.
    pub(crate) const BF16: Self = Self { absolute: 1e-4, relative: 1.0 / 128.0 };
    /// No tolerance: the same bits.
    pub(crate) const EXACT: Self = Self { absolute: 0.0, relative: 0.0 };
}

/// Returns the largest difference, if none is too large.
pub(crate) fn close(what: &str, got: &[f32], wanted: &[f32], tolerance: Tolerance) -> Result<f64> {
    ensure!(got.len() == wanted.len(), "{what}: {} numbers, not {}", got.len(), wanted.len());
    let mut worst = 0.0_f64;
    for (i, (got, wanted)) in got.iter().zip(wanted).enumerate() {
        if got.to_bits() == wanted.to_bits() || (got.is_nan() && wanted.is_nan()) {
            continue;
        }
        let difference = (got - wanted).abs();
        let most = tolerance.absolute + tolerance.relative * wanted.abs();
        // A NaN on one side only is never within bounds.
        ensure!(
            difference <= most,
            "{what}: number {i} is {got:e}, the CPU has {wanted:e} ({difference:e} apart, {most:e} may be)"
        );
        worst = worst.max(f64::from(difference));
    }
    Ok(worst)
}

/// Runs the same on the CPU and on the device, and compares.
pub(crate) fn both(
    ctx: &Context,
    what: &str,
    tolerance: Tolerance,
    work: impl Fn(&Runtime) -> Result<Vec<f32>>,
) -> Result<f64> {
    let wanted = work(ctx.cpu())?;
    let mut worst = 0.0_f64;
    for batch_invariant in [false, true] {
        let got = work(ctx.device(Precision::F32, batch_invariant))?;
        let mode = if batch_invariant { " (batch invariant)" } else { "" };
        worst = worst.max(close(&format!("{what}{mode}"), &got, &wanted, tolerance)?);
    }
    Ok(worst)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_too_far_apart_is_told_with_its_place_and_numbers() {
        let error =
            close("sums", &[1.0, 2.0], &[1.0, 2.5], Tolerance::F32).unwrap_err().to_string();
        assert!(error.contains("sums: number 1 is 2e0, the CPU has 2.5e0"), "{error}");
        assert!(close("sums", &[1.0], &[1.0, 2.0], Tolerance::F32).is_err());
        assert!(close("sums", &[f32::NAN], &[1.0], Tolerance::BF16).is_err());
        assert!(close("sums", &[1.0], &[f32::INFINITY], Tolerance::EXACT).is_err());
    }

    #[test]
    fn equal_bits_and_two_nans_are_close() {
        let same = [f32::NAN, f32::INFINITY, -0.0, 1.0];
        assert_eq!(close("bits", &same, &same, Tolerance::EXACT).unwrap(), 0.0);
    }

    #[test]
    fn names_are_told_apart() {
        let mut names: Vec<&str> = checks().map(|check| check.name).collect();
        names.sort_unstable();
        assert!(names.windows(2).all(|two| two[0] != two[1]), "{names:?}");
    }
}
