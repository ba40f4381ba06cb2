//! Do these draws come from that distribution? Pearson's chi-square test.
//!
//! What was counted is held against what was to be expected: `X = sum (counted - expected)^2 / expected`. If the
//! draws do come from the distribution, `X` follows (nearly) a chi-square law with one degree of freedom less than
//! there are bins, and its *p-value* is the chance of an `X` at least this large. Our tests fail below
//! [`SIGNIFICANCE`], so a right sampler with a seed that nobody chose would fail one in ten thousand of them. The
//! seeds here are fixed, so a test that passes once passes always, and a failure is a bug and not bad luck.
//!
//! The upper tail is the regularised incomplete gamma function `Q(degrees / 2, X / 2)`: a series where the lower tail is
//! the smaller one, Lentz's continued fraction elsewhere (Abramowitz and Stegun, "Handbook of Mathematical
//! Functions", 6.5.29 and 6.5.31).

#![allow(dead_code)] // Every test program uses its own part of this.

use std::fmt::Display;

/// The p-value below which draws do not come from the distribution they should come from.
pub const SIGNIFICANCE: f64 = 1e-4;

/// A bin with fewer expected draws than this is not nearly normal; such bins are counted together.
pub const FEWEST_EXPECTED: f64 = 5.0;

/// What a test found.
#[derive(Clone, Copy, Debug)]
pub struct ChiSquare {
    /// `X`.
    pub statistic: f64,
    /// Bins, after pooling, less one.
    pub degrees: usize,
    /// The chance of such an `X`, or a larger one, if all is well.
    pub p_value: f64,
}

/// Panic unless `counts` may well be draws from `probs` (which need not sum to 1). A draw of what has no probability
/// at all is reported for itself: no statistics are needed to know it for wrong.
pub fn check_draws(what: impl Display, counts: &[u64], probs: &[f64]) {
    assert_eq!(counts.len(), probs.len(), "{what}: the number of bins");
    if let Some(i) = (0..counts.len()).find(|i| counts[*i] > 0 && probs[*i] <= 0.0) {
        panic!(
            "{what}: token {i} was drawn, which has no probability\n  expected  0 draws\n  got       {} of {}",
            counts[i],
            counts.iter().sum::<u64>()
        );
    }
    let found = chi_square(counts, probs);
    if found.p_value < SIGNIFICANCE {
        let (i, expected) = worst_bin(counts, probs);
        panic!(
            "{what}: these {} draws do not come from this distribution\n  worst at  token {i}\n  expected  {expected:.1} \
             draws\n  got       {} draws\n  p-value   {:.2e} (must be {SIGNIFICANCE:.0e} or more; chi-square {:.1} with {} \
             degrees of freedom)",
            counts.iter().sum::<u64>(),
            counts[i],
            found.p_value,
            found.statistic,
            found.degrees,
        );
    }
}

/// The test itself. Bins of few expected draws are pooled, in the order in which they stand.
pub fn chi_square(counts: &[u64], probs: &[f64]) -> ChiSquare {
    let bins = pooled(counts, probs);
    let statistic =
        bins.iter().map(|(o, e)| if *e > 0.0 { (o - e).powi(2) / e } else { 0.0 }).sum();
    let degrees = bins.len().saturating_sub(1);
    let p_value =
        if degrees == 0 { 1.0 } else { upper_gamma(degrees as f64 / 2.0, statistic / 2.0) };
    ChiSquare { statistic, degrees, p_value }
}

/// `(counted, expected)` of bins that each expect at least [`FEWEST_EXPECTED`] draws.
fn pooled(counts: &[u64], probs: &[f64]) -> Vec<(f64, f64)> {
    let draws = counts.iter().sum::<u64>() as f64;
    let total: f64 = probs.iter().sum();
    let mut bins = Vec::new();
    let mut pool = (0.0, 0.0);
    for (count, prob) in counts.iter().zip(probs) {
        let bin = (*count as f64, prob / total * draws);
        if bin.1 >= FEWEST_EXPECTED {
            bins.push(bin);
            continue;
        }
        pool = (pool.0 + bin.0, pool.1 + bin.1);
        if pool.1 >= FEWEST_EXPECTED {
            bins.push(std::mem::take(&mut pool));
        }
    }
    // What is left over is too little for a bin of its own.
    match bins.last_mut() {
        Some(last) => *last = (last.0 + pool.0, last.1 + pool.1),
        None => bins.push(pool),
    }
    bins
}

/// The bin that adds the most to the statistic, and its expected count.
fn worst_bin(counts: &[u64], probs: &[f64]) -> (usize, f64) {
    let draws = counts.iter().sum::<u64>() as f64;
    let total: f64 = probs.iter().sum();
    let expected = |i: usize| probs[i] / total * draws;
    let excess =
        |i: usize| (counts[i] as f64 - expected(i)).powi(2) / expected(i).max(FEWEST_EXPECTED);
    let worst =
        (0..counts.len()).reduce(|a, b| if excess(b) > excess(a) { b } else { a }).unwrap_or(0);
    (worst, expected(worst))
}

/// `Q(a, x)`, the regularised upper incomplete gamma function.
pub fn upper_gamma(a: f64, x: f64) -> f64 {
    if x <= 0.0 {
        return 1.0;
    }
    // x^a e^-x / gamma(a)
    let front = (a * x.ln() - x - ln_gamma(a)).exp();
    if x < a + 1.0 {
        // 1 - P, P = front * sum of x^n / (a (a+1) .. (a+n))
        let mut term = 1.0 / a;
        let mut sum = term;
        let mut n = a;
        while term > sum * 1e-16 {
            n += 1.0;
            term *= x / n;
            sum += term;
        }
        return 1.0 - front * sum;
    }
    // Q = front / (x + 1 - a - 1 (1 - a) / (x + 3 - a - 2 (2 - a) / (x + 5 - a - ..))), by Lentz's method.
    const TINY: f64 = 1e-300;
    let mut b = x + 1.0 - a;
    let mut c = 1.0 / TINY;
    let mut d = 1.0 / b;
    let mut fraction = d;
    for i in 1..10_000 {
        let i = f64::from(i);
        let numerator = i * (a - i);
        b += 2.0;
        let step = |v: f64| if v.abs() < TINY { TINY } else { v };
        d = 1.0 / step(numerator * d + b);
        c = step(b + numerator / c);
        fraction *= d * c;
        if (d * c - 1.0).abs() < 1e-15 {
            break;
        }
    }
    front * fraction
}

/// `ln gamma(x)` for x > 0: Stirling's series, after the argument was raised to where it is exact to f64.
fn ln_gamma(x: f64) -> f64 {
    let (mut x, mut below) = (x, 0.0);
    while x < 12.0 {
        below += x.ln();
        x += 1.0;
    }
    let y = 1.0 / (x * x);
    let series = (1.0 / 12.0 - y * (1.0 / 360.0 - y * (1.0 / 1260.0 - y / 1680.0))) / x;
    (x - 0.5) * x.ln() - x + 0.5 * (2.0 * std::f64::consts::PI).ln() + series - below
}
