//! Report of a simulation: each lane by itself, and never a sum of latencies.

use std::collections::BTreeMap;
use std::fmt;

use serde::ser::SerializeStruct;
use serde::{Serialize, Serializer};

use super::histogram::Histogram;
use crate::admission::RefusalCode;
use crate::quote::{Accuracy, Compared};

/// Accuracy of quotes: first token, last token for the output that came, and last token for the expected output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct QuoteReport {
    /// Quotes of the first output token.
    pub first_token: Accuracy,
    /// Quotes of the last output token, for as many tokens as the request turned out to have.
    pub done: Accuracy,
    /// Quotes of the last output token, for the expected number of tokens.
    pub done_as_expected: Accuracy,
}

impl QuoteReport {
    pub(super) fn add(&mut self, [first_token, done, as_expected]: [Compared; 3]) {
        self.first_token.add(first_token);
        self.done.add(done);
        self.done_as_expected.add(as_expected);
    }
}

/// What happened in a lane.
#[derive(Clone, Debug, Default)]
pub struct LaneReport {
    /// Name of the lane.
    pub name: String,
    /// Number of requests that the router sent to the lane. Each was admitted, refused, spilled to another lane, or did
    /// not fit.
    pub offered: u64,
    /// Number of requests that were admitted, including those that spilled here from other lanes.
    pub admitted: u64,
    /// Number of requests that were refused, by code.
    pub refused: BTreeMap<&'static str, u64>,
    /// Number of requests that did not fit the context or the pool.
    pub too_long: u64,
    /// Number of requests that another lane admitted instead.
    pub spilled_out: u64,
    /// Number of requests that this lane admitted instead of another.
    pub spilled_in: u64,
    /// Number of requests that got their whole output.
    pub finished: u64,
    /// Number of requests that ended early, because they outgrew the pool.
    pub cut_short: u64,
    /// Number of admitted requests with a deadline.
    pub deadlines: u64,
    /// Number of those that were finished in time.
    pub deadlines_met: u64,
    /// Number of steps.
    pub steps: u64,
    /// Number of preemptions.
    pub preemptions: u64,
    /// Time to first token.
    pub ttft: Histogram,
    /// Inter-token latency.
    pub itl: Histogram,
    /// End-to-end latency.
    pub e2e: Histogram,
    /// Accuracy of the quotes of admitted requests.
    pub quotes: QuoteReport,
}

impl LaneReport {
    pub(super) fn new(name: &str) -> Self {
        let refused = RefusalCode::ALL.map(|code| (code.name(), 0)).into();
        Self { name: name.to_owned(), refused, ..Self::default() }
    }

    /// Fraction of admitted requests with a deadline that were finished in time. `None` if there were none.
    pub fn goodput(&self) -> Option<f64> {
        (self.deadlines > 0).then(|| self.deadlines_met as f64 / self.deadlines as f64)
    }

    /// Number of requests that were refused.
    pub fn refused_total(&self) -> u64 {
        self.refused.values().sum()
    }
}

impl Serialize for LaneReport {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let mut map = to.serialize_struct("LaneReport", 18)?;
        map.serialize_field("name", &self.name)?;
        map.serialize_field("offered", &self.offered)?;
        map.serialize_field("admitted", &self.admitted)?;
        map.serialize_field("refused", &self.refused)?;
        map.serialize_field("too_long", &self.too_long)?;
        map.serialize_field("spilled_out", &self.spilled_out)?;
        map.serialize_field("spilled_in", &self.spilled_in)?;
        map.serialize_field("finished", &self.finished)?;
        map.serialize_field("cut_short", &self.cut_short)?;
        map.serialize_field("deadlines", &self.deadlines)?;
        map.serialize_field("deadlines_met", &self.deadlines_met)?;
        map.serialize_field("goodput", &self.goodput())?;
        map.serialize_field("steps", &self.steps)?;
        map.serialize_field("preemptions", &self.preemptions)?;
        map.serialize_field("ttft", &self.ttft.percentiles())?;
        map.serialize_field("itl", &self.itl.percentiles())?;
        map.serialize_field("e2e", &self.e2e.percentiles())?;
        map.serialize_field("quotes", &self.quotes)?;
        map.end()
    }
}

/// What the escalation of an ensemble did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct EscalationReport {
    /// Highest level that was in force.
    pub highest: usize,
    /// Level at the end.
    pub level: usize,
    /// Number of times that the load raised and lowered it.
    pub moves: (u64, u64),
}

/// Result of a simulation. Latencies are in seconds, for each lane: a mean over lanes would be the latency of no
/// request.
#[derive(Clone, Debug, Default, Serialize)]
pub struct SimReport {
    /// Simulated seconds.
    pub seconds: f64,
    /// Lanes in the order of the workload. Each replica of a specialist is one.
    pub lanes: Vec<LaneReport>,
    /// Number of requests that the router sent to no lane (HTTP 422).
    pub unrouted: u64,
    /// What the escalation did, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub escalation: Option<EscalationReport>,
    /// Accuracy of the quotes of refused requests that were probed, by code: what would have happened had they been
    /// admitted.
    pub refused_quotes: BTreeMap<&'static str, QuoteReport>,
}

impl fmt::Display for SimReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "simulated {:.1} s", self.seconds)?;
        if let Some(EscalationReport { highest, level, moves: (raised, lowered) }) = self.escalation
        {
            writeln!(
                f,
                "escalation: highest level {highest}, {level} at the end; raised {raised} times, lowered {lowered}"
            )?;
        }
        if self.unrouted > 0 {
            writeln!(f, "{} requests that no simulated specialist serves", self.unrouted)?;
        }
        for lane in &self.lanes {
            writeln!(f, "\n{}", lane.name)?;
            write!(f, "  requests  {} offered, {} admitted", lane.offered, lane.admitted)?;
            let spilled =
                [("spilled to other lanes", lane.spilled_out), ("too long", lane.too_long)];
            let refused = lane.refused.iter().map(|(code, n)| (*code, *n));
            for (what, n) in refused.chain(spilled).filter(|(_, n)| *n > 0) {
                write!(f, ", {n} {what}")?;
            }
            if lane.spilled_in > 0 {
                write!(f, "; {} of the admitted spilled from other lanes", lane.spilled_in)?;
            }
            writeln!(f)?;
            if let Some(goodput) = lane.goodput() {
                let (met, all) = (lane.deadlines_met, lane.deadlines);
                writeln!(f, "  goodput   {:.2}% ({met} of {all} deadlines met)", 100.0 * goodput)?;
            }
            for (name, durations) in [("ttft", &lane.ttft), ("itl", &lane.itl), ("e2e", &lane.e2e)]
            {
                if let Some(at) = durations.percentiles() {
                    let (p50, p95, p99) = (at.p50, at.p95, at.p99);
                    writeln!(f, "  {name:<9} p50 {p50:.4} s, p95 {p95:.4} s, p99 {p99:.4} s")?;
                }
            }
            writeln!(f, "  steps     {}, {} preemptions", lane.steps, lane.preemptions)?;
            write!(f, "  quotes    ")?;
            accuracy(f, &lane.quotes)?;
        }
        if !self.refused_quotes.is_empty() {
            writeln!(f, "\nrefused requests that were probed")?;
        }
        for (code, quotes) in &self.refused_quotes {
            write!(f, "  {code}: ")?;
            accuracy(f, quotes)?;
        }
        Ok(())
    }
}

fn accuracy(f: &mut fmt::Formatter<'_>, quotes: &QuoteReport) -> fmt::Result {
    let QuoteReport { first_token, done, done_as_expected } = quotes;
    if first_token.count == 0 {
        return writeln!(f, "-");
    }
    let wrong = |accuracy: &Accuracy| 100.0 * accuracy.wrong_fraction();
    writeln!(
        f,
        "{}, wrong by more than 25% and 0.1 s: first token {:.2}%, last token {:.2}% ({:.2}% with the expected length)",
        first_token.count,
        wrong(first_token),
        wrong(done),
        wrong(done_as_expected)
    )
}
