//! How long `continuum` holds the blocks of a step: its time to live.

use std::fmt;
use std::str::FromStr;

use super::gaps::Gaps;

/// Time to live of the published program, in seconds; a tool that takes longer gets no lease there.
pub const FIXED_TTL: f64 = 2.0;

/// Number of pauses from which their distribution is used, that of all tools and that of one: `K` of the paper.
pub(super) const ENOUGH_PAUSES: usize = 100;

/// Which estimate of a lease's time to live `continuum` uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ttl {
    /// [`FIXED_TTL`] seconds, as in the published program.
    #[default]
    Fixed,
    /// From the empirical distribution of pauses, as in the paper.
    Cdf,
}

impl Ttl {
    /// All estimates.
    pub const ALL: [Self; 2] = [Self::Fixed, Self::Cdf];

    fn name(self) -> &'static str {
        match self {
            Self::Fixed => "fixed",
            Self::Cdf => "cdf",
        }
    }
}

impl fmt::Display for Ttl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Ttl {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|ttl| ttl.name() == s);
        found.ok_or_else(|| format!("unknown time to live `{s}`: use fixed or cdf"))
    }
}

/// What a job gains by a lease that is still there when it returns, in seconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Gain {
    /// Mean wait of the steps that came back without a lease.
    pub wait: f64,
    /// Correlation of the steps that jobs have done with those that they have left, with the sign changed.
    pub eta: f64,
    /// Time to compute the blocks again.
    pub reload: f64,
}

/// The time to live that pays most, from the pauses of all tools and of this one. A lease of `tau` seconds costs its
/// blocks for so long, and gains something if the pause is not longer:
///
/// ```text
/// tau* = argmax over {0} and all recorded gaps of  F(tau) * (wait * eta + reload) - tau
/// ```
///
/// `F` is the share of gaps that are not longer: those of the tool if there are more than [`ENOUGH_PAUSES`], else those
/// of all tools. Before there are so many at all, gaps are taken to be exponential with a mean of 1 s, and `eta` to be
/// 1: the maximum is at `ln(wait + reload)`, or at 0 if that is negative.
pub(super) fn best_ttl(gain: Gain, all: &Gaps, tool: Option<&Gaps>) -> f64 {
    // exercise l5.ttl
    if all.len() < ENOUGH_PAUSES {
        return (gain.wait + gain.reload).max(1.0).ln();
    }
    let gaps = tool.filter(|tool| tool.len() > ENOUGH_PAUSES).unwrap_or(all).sorted();
    let gain = gain.wait * gain.eta + gain.reload;
    let (mut best, mut most) = (0.0, 0.0);
    for (gap, number) in gaps.iter().zip(1..) {
        let share = f64::from(number) / gaps.len() as f64;
        let value = share * gain - gap;
        if value > most {
            (best, most) = (*gap, value);
        }
    }
    best
    // end of exercise
}

/// How well the number of steps that a job has done says how many it has left. If all jobs have the same number of
/// steps, the correlation of the two is -1; if a job ends after any step with the same probability, it is 0.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Memory {
    /// Number of steps of all jobs, and sums over them of `k` (steps done), `r` (steps left), and their products.
    n: f64,
    k: f64,
    r: f64,
    kk: f64,
    rr: f64,
    kr: f64,
}

impl Memory {
    /// A job has ended after so many steps.
    pub(super) fn add(&mut self, steps: u64) {
        let n = steps as f64;
        // Sums over k = 1 to n, with r = n - k.
        let (k, kk) = (n * (n + 1.0) / 2.0, n * (n + 1.0) * (2.0 * n + 1.0) / 6.0);
        self.n += n;
        self.k += k;
        self.kk += kk;
        self.r += n * n - k;
        self.rr += n * n * n - 2.0 * n * k + kk;
        self.kr += n * k - kk;
    }

    /// `eta`: the correlation with the sign changed, from 0 to 1; 1 before anything is known.
    pub(super) fn eta(&self) -> f64 {
        let covariance = self.n * self.kr - self.k * self.r;
        let variances = (self.n * self.kk - self.k * self.k) * (self.n * self.rr - self.r * self.r);
        if variances > 0.0 { (-covariance / variances.sqrt()).clamp(0.0, 1.0) } else { 1.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gaps(all: impl IntoIterator<Item = f64>) -> Gaps {
        let mut gaps = Gaps::new(512);
        all.into_iter().for_each(|gap| gaps.add(gap));
        gaps
    }

    const GAIN: Gain = Gain { wait: 3.0, eta: 0.5, reload: 1.0 };

    #[test]
    fn without_records_pauses_are_exponential_with_a_mean_of_a_second() {
        let few = gaps([0.1; ENOUGH_PAUSES - 1]);
        assert_eq!(best_ttl(GAIN, &few, None), 4.0_f64.ln(), "eta is 1 then");
        let enough = gaps([0.1; ENOUGH_PAUSES]);
        assert_eq!(best_ttl(GAIN, &enough, None), 0.1, "a hundred are enough");
        assert_eq!(best_ttl(Gain { wait: 0.2, reload: 0.5, ..GAIN }, &few, None), 0.0);
        // The maximum of (1 - exp(-tau)) * 4 - tau.
        let value = |tau: f64| (1.0 - (-tau).exp()) * 4.0 - tau;
        let best = 4.0_f64.ln();
        assert!(value(best) > value(best - 0.01) && value(best) > value(best + 0.01));
    }

    #[test]
    fn a_lease_is_as_long_as_pays() {
        // Three of four pauses take 0.2 s, the others a minute, which no gain of 2.5 s is worth.
        let all = gaps((0..200).map(|n| if n % 4 == 0 { 60.0 } else { 0.2 }));
        assert_eq!(best_ttl(GAIN, &all, None), 0.2);
        assert_eq!(best_ttl(Gain { wait: 2000.0, ..GAIN }, &all, None), 60.0);
        let little = Gain { wait: 0.1, eta: 0.5, reload: 0.1 };
        assert_eq!(best_ttl(little, &all, None), 0.0, "0.75 * 0.15 is less than 0.2");
    }

    #[test]
    fn a_tool_has_its_own_distribution_when_it_has_more_than_a_hundred_pauses() {
        let (all, slow) = (gaps([0.2; 200]), gaps([9.0; ENOUGH_PAUSES]));
        assert_eq!(best_ttl(GAIN, &all, Some(&slow)), 0.2, "exactly a hundred");
        let slow = gaps([9.0; ENOUGH_PAUSES + 1]);
        assert_eq!(best_ttl(GAIN, &all, Some(&slow)), 0.0);
    }

    #[test]
    fn steps_done_say_what_is_left_if_all_jobs_are_alike() {
        let mut memory = Memory::default();
        assert_eq!(memory.eta(), 1.0, "nothing is known");
        memory.add(8);
        memory.add(8);
        assert!((memory.eta() - 1.0).abs() < 1e-12);
        // Jobs that end after each step with probability 1/2: of 1,024 jobs, 512 have one step, 256 two, and so on.
        let mut memory = Memory::default();
        for steps in 1..=20_u64 {
            (0..1_u32 << (20 - steps)).for_each(|_| memory.add(steps));
        }
        assert!(memory.eta() < 0.01, "{}", memory.eta());
    }
}
