//! Samples, by storage of the weights, engine, kind of work, and whether another process was busy.

use std::collections::BTreeMap;
use std::fmt;

use super::obtain::Project;
use super::serving::{LENGTHS, USERS};
use super::weights::Weights;

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
    /// A server with users, whose requests are prefilled and decoded.
    Serving,
}

impl fmt::Display for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Work::Prefill => write!(f, "prefill {}", super::PROMPT),
            Work::Decode(batch) => write!(f, "decode, batch {batch}"),
            Work::Serving => {
                let (prompt, output) = LENGTHS;
                write!(f, "server, {USERS} users, {prompt} tokens in, {output} out")
            }
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
    /// Latencies of a server.
    pub latency: Option<Latency>,
}

impl Figure {
    /// A rate alone.
    pub fn rate(work: Work, rate: f64) -> Self {
        Self { work, rate, reached: None, latency: None }
    }
}

/// What the client of a server waited, in milliseconds.
#[derive(Clone, Copy, Debug)]
pub struct Latency {
    /// Median time to the first token.
    pub ttft_ms: f64,
    /// 99th percentile of the time between two chunks.
    pub itl_ms: f64,
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
    figures: BTreeMap<(Weights, Who, bool, Work), Vec<Figure>>,
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
    pub fn add(&mut self, weights: Weights, who: Who, busy: bool, figures: Vec<Figure>) {
        for figure in figures {
            self.figures.entry((weights, who, busy, figure.work)).or_default().push(figure);
        }
    }

    /// Median rate in tokens per second; NaN if it was not measured.
    pub fn rate(&self, weights: Weights, who: Who, busy: bool, work: Work) -> f64 {
        median(self.of(weights, who, busy, work).map(|f| f.rate))
    }

    /// Median fraction of the limit, for the unit of the first figure.
    pub fn reached(&self, weights: Weights, who: Who, work: Work) -> Option<Reached> {
        let all: Vec<&Reached> =
            self.of(weights, who, false, work).filter_map(|f| f.reached.as_ref()).collect();
        let unit = all.first()?.unit;
        let of = || all.iter().filter(|r| r.unit == unit);
        let fraction = median(of().map(|r| r.fraction));
        Some(Reached { fraction, limit: median(of().map(|r| r.limit)), unit })
    }

    /// Medians of a server's latencies.
    pub fn latency(&self, weights: Weights, who: Who) -> Option<Latency> {
        let all = || self.of(weights, who, false, Work::Serving).filter_map(|f| f.latency);
        all().next()?;
        Some(Latency {
            ttft_ms: median(all().map(|l| l.ttft_ms)),
            itl_ms: median(all().map(|l| l.itl_ms)),
        })
    }

    /// Projects that were measured, in a fixed order.
    pub fn projects(&self) -> Vec<Project> {
        let measured = |project: &Project| {
            self.figures.keys().any(|(_, who, ..)| *who == Who::Theirs(*project))
        };
        [Project::LlamaCpp, Project::IkLlama].into_iter().filter(measured).collect()
    }

    fn of(
        &self,
        weights: Weights,
        who: Who,
        busy: bool,
        work: Work,
    ) -> impl Iterator<Item = &Figure> {
        self.figures.get(&(weights, who, busy, work)).into_iter().flatten()
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
            let figures = vec![Figure::rate(Work::Prefill, rate)];
            samples.add(Weights::Bf16, Who::Ours, busy, figures);
        }
        let rate = |weights, who, busy| samples.rate(weights, who, busy, Work::Prefill);
        assert_eq!(rate(Weights::Bf16, Who::Ours, false), 20.0);
        assert_eq!(rate(Weights::Bf16, Who::Ours, true), 5.0);
        assert!(rate(Weights::Bf16, Who::Theirs(Project::LlamaCpp), false).is_nan());
        assert!(rate(Weights::Q4_1, Who::Ours, false).is_nan());
    }
}
