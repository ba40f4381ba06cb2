//! What was measured, kept by who, what, and whether a neighbour was busy.

use std::collections::BTreeMap;
use std::fmt;

/// Whose figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Who {
    /// Strata, activations rounded to bf16.
    Ours,
    /// Strata, exact activations.
    OursF32,
    /// llama.cpp.
    Theirs,
}

/// What was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Work {
    /// One long prompt.
    Prefill,
    /// Tokens of so many sequences at once.
    Decode(usize),
}

impl fmt::Display for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Work::Prefill => write!(f, "prefill {}", super::PROMPT),
            Work::Decode(batch) => write!(f, "decode, batch {batch}"),
        }
    }
}

/// One figure of one round.
#[derive(Clone, Debug)]
pub struct Figure {
    /// What was done.
    pub work: Work,
    /// Tokens per second.
    pub rate: f64,
    /// How near it came to what the machine allows, where that was measured.
    pub reached: Option<Reached>,
}

/// A share of a limit that was measured beside the figure.
#[derive(Clone, Debug)]
pub struct Reached {
    /// 1 is all of it.
    pub fraction: f64,
    /// The limit, in GB/s or GFLOP/s.
    pub limit: f64,
    /// Which of the two.
    pub unit: &'static str,
}

/// All figures of all rounds.
#[derive(Default)]
pub struct Samples {
    figures: BTreeMap<(Who, bool, Work), Vec<Figure>>,
    /// The command lines, in the order of first use.
    pub commands: Commands,
}

/// Command lines as one would type them, each once.
#[derive(Default)]
pub struct Commands(pub Vec<String>);

impl Commands {
    /// Note a command.
    pub fn note(&mut self, command: &std::process::Command) {
        let text = crate::shell::spelled(command);
        if !self.0.contains(&text) {
            self.0.push(text);
        }
    }
}

impl Samples {
    /// Keep what a run brought.
    pub fn add(&mut self, who: Who, busy: bool, figures: Vec<Figure>) {
        for figure in figures {
            self.figures.entry((who, busy, figure.work)).or_default().push(figure);
        }
    }

    /// The median rate in tokens per second; NaN if it was not measured.
    pub fn rate(&self, who: Who, busy: bool, work: Work) -> f64 {
        median(self.of(who, busy, work).map(|f| f.rate))
    }

    /// The median share of the limit that binds more.
    pub fn reached(&self, who: Who, work: Work) -> Option<Reached> {
        let all: Vec<&Reached> =
            self.of(who, false, work).filter_map(|f| f.reached.as_ref()).collect();
        let unit = all.first()?.unit;
        let of = || all.iter().filter(|r| r.unit == unit);
        let fraction = median(of().map(|r| r.fraction));
        Some(Reached { fraction, limit: median(of().map(|r| r.limit)), unit })
    }

    fn of(&self, who: Who, busy: bool, work: Work) -> impl Iterator<Item = &Figure> {
        self.figures.get(&(who, busy, work)).into_iter().flatten()
    }
}

/// The middle value; NaN of nothing.
pub fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => values[n / 2],
        n => (values[n / 2 - 1] + values[n / 2]) / 2.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_of_rounds_counts_and_quiet_and_busy_rounds_stay_apart() {
        let mut samples = Samples::default();
        for (busy, rate) in [(false, 10.0), (false, 30.0), (false, 20.0), (true, 5.0)] {
            samples.add(Who::Ours, busy, vec![Figure { work: Work::Prefill, rate, reached: None }]);
        }
        assert_eq!(samples.rate(Who::Ours, false, Work::Prefill), 20.0);
        assert_eq!(samples.rate(Who::Ours, true, Work::Prefill), 5.0);
        assert!(samples.rate(Who::Theirs, false, Work::Prefill).is_nan());
    }
}
