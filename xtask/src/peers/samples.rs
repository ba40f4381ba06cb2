//! Samples, by engine, kind of work, and whether another process was busy.

use std::collections::BTreeMap;
use std::fmt;

use super::obtain::Project;

/// Engine of a figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Who {
    /// Strata, activations rounded to bf16.
    Ours,
    /// Strata, exact activations.
    OursF32,
    /// Another project.
    Theirs(Project),
}

/// Kind of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Work {
    /// Prefill of one long prompt.
    Prefill,
    /// Decode of so many sequences at once.
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
    /// Kind of work.
    pub work: Work,
    /// Tokens per second.
    pub rate: f64,
    /// Fraction of the machine's limit, where the limit was measured.
    pub reached: Option<Reached>,
}

/// Fraction of a limit that was measured beside the figure.
#[derive(Clone, Debug)]
pub struct Reached {
    /// Fraction: 1 is the whole limit.
    pub fraction: f64,
    /// The limit, in GB/s or GFLOP/s.
    pub limit: f64,
    /// Unit: one of the two.
    pub unit: &'static str,
}

/// All figures of all rounds.
#[derive(Default)]
pub struct Samples {
    figures: BTreeMap<(Who, bool, Work), Vec<Figure>>,
    /// Command lines, in the order of first use.
    pub commands: Commands,
}

/// Command lines as typed in a shell, each once.
#[derive(Default)]
pub struct Commands(pub Vec<String>);

impl Commands {
    /// Notes a command.
    pub fn note(&mut self, command: &std::process::Command) {
        let text = course::shell::spelled(command);
        if !self.0.contains(&text) {
            self.0.push(text);
        }
    }
}

impl Samples {
    /// Adds the figures of a run.
    pub fn add(&mut self, who: Who, busy: bool, figures: Vec<Figure>) {
        for figure in figures {
            self.figures.entry((who, busy, figure.work)).or_default().push(figure);
        }
    }

    /// Median rate in tokens per second; NaN if it was not measured.
    pub fn rate(&self, who: Who, busy: bool, work: Work) -> f64 {
        median(self.of(who, busy, work).map(|f| f.rate))
    }

    /// Median fraction of the limit, for the unit of the first figure.
    pub fn reached(&self, who: Who, work: Work) -> Option<Reached> {
        let all: Vec<&Reached> =
            self.of(who, false, work).filter_map(|f| f.reached.as_ref()).collect();
        let unit = all.first()?.unit;
        let of = || all.iter().filter(|r| r.unit == unit);
        let fraction = median(of().map(|r| r.fraction));
        Some(Reached { fraction, limit: median(of().map(|r| r.limit)), unit })
    }

    /// Projects that were measured, in a fixed order.
    pub fn projects(&self) -> Vec<Project> {
        let measured =
            |project: &Project| self.figures.keys().any(|(who, ..)| *who == Who::Theirs(*project));
        [Project::LlamaCpp, Project::IkLlama].into_iter().filter(measured).collect()
    }

    fn of(&self, who: Who, busy: bool, work: Work) -> impl Iterator<Item = &Figure> {
        self.figures.get(&(who, busy, work)).into_iter().flatten()
    }
}

/// Median; NaN without values.
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
        assert!(samples.rate(Who::Theirs(Project::LlamaCpp), false, Work::Prefill).is_nan());
    }
}
