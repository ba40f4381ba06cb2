//! Summary of a run.

use std::collections::BTreeMap;
use std::fmt::{self, Write};

use serde::Serialize;

use super::event::PhasesUs;
use super::run::Run;
use crate::sim::Durations;

/// A run in a few numbers.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Summary {
    /// Steps that ran.
    pub steps: usize,
    /// Steps that were abandoned.
    pub abandoned: usize,
    /// Steps with both prefill and decode rows.
    pub mixed: usize,
    /// Requests that arrived.
    pub requests: usize,
    /// Number of ended and rejected requests, by reason.
    pub ends: BTreeMap<String, usize>,
    /// Requests whose end is not recorded.
    pub unfinished: usize,
    /// Seconds from the first arrival to the end of the last step.
    pub seconds: f64,
    /// Prompt tokens computed.
    pub prefill_tokens: usize,
    /// Tokens computed again after a preemption.
    pub resumed_tokens: usize,
    /// Tokens hit in the cache.
    pub cached_tokens: usize,
    /// Tokens sampled.
    pub new_tokens: usize,
    /// Rows with drafts.
    pub drafted_rows: usize,
    /// Drafts of all rows.
    pub draft_tokens: usize,
    /// Drafts that were accepted.
    pub accepted_tokens: usize,
    /// Tokens sampled a second.
    pub tokens_per_second: f64,
    /// Preemptions.
    pub preemptions: usize,
    /// Largest number of requests that ran and waited at once.
    pub most_running: usize,
    /// Largest number of requests that waited at once.
    pub most_waiting: usize,
    /// Largest KV cache usage, from 0 to 1.
    pub kv_peak: f64,
    /// Time to first token, in milliseconds.
    pub ttft_ms: Option<Percentiles>,
    /// Inter-token latency, in milliseconds.
    pub itl_ms: Option<Percentiles>,
    /// End-to-end latency, in milliseconds.
    pub e2e_ms: Option<Percentiles>,
    /// Fraction of the steps' time that each phase took, from 0 to 1: those of [`PhasesUs`].
    pub shares: [f64; PhasesUs::COUNT],
}

/// Percentiles (nearest rank: a value that occurred, not one between two).
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[expect(missing_docs, reason = "the names say it")]
pub struct Percentiles {
    pub p50: f64,
    pub p95: f64,
    pub p99: f64,
    pub max: f64,
}

impl Percentiles {
    /// Percentiles in milliseconds of durations in nanoseconds; `None` without durations.
    pub fn of(durations: Vec<u64>) -> Option<Self> {
        let mut all: Durations = durations.into_iter().map(|ns| ns as f64 / 1e6).collect();
        let mut at = |percent| all.percentile(percent);
        Some(Self { p50: at(50.0)?, p95: at(95.0)?, p99: at(99.0)?, max: at(100.0)? })
    }
}

impl Summary {
    /// Summarises a run.
    pub fn of(run: &Run) -> Self {
        let (start, end) = run.bounds();
        let mut summary = Self { seconds: (end - start) as f64 / 1e9, ..Self::default() };
        let mut parts = [0u64; PhasesUs::COUNT];
        for step in &run.steps {
            if step.abandoned {
                summary.abandoned += 1;
            } else {
                summary.steps += 1;
            }
            summary.mixed += usize::from(step.decodes > 0 && !step.prefills.is_empty());
            summary.prefill_tokens += step.prefill_tokens;
            summary.resumed_tokens += step.resumed_tokens;
            summary.new_tokens += step.new_tokens;
            summary.drafted_rows += step.drafts.len();
            summary.draft_tokens = summary.draft_tokens.saturating_add(step.draft_tokens);
            summary.accepted_tokens = summary.accepted_tokens.saturating_add(step.accepted_tokens);
            summary.preemptions += step.preempted.len();
            summary.most_running = summary.most_running.max(step.running);
            summary.most_waiting = summary.most_waiting.max(step.waiting);
            let used = step.kv.total.saturating_sub(step.kv.free) as f64;
            summary.kv_peak = summary.kv_peak.max(used / step.kv.total.max(1) as f64);
            for (sum, part) in parts.iter_mut().zip(step.parts) {
                *sum += part;
            }
        }
        let all = parts.iter().sum::<u64>().max(1) as f64;
        summary.shares = parts.map(|part| part as f64 / all);
        summary.tokens_per_second = match summary.seconds > 0.0 {
            true => summary.new_tokens as f64 / summary.seconds,
            false => 0.0,
        };
        summary.count_lanes(run);
        summary.itl_ms = Percentiles::of(run.gaps.clone());
        summary
    }

    fn count_lanes(&mut self, run: &Run) {
        let (mut ttft, mut e2e) = (Vec::new(), Vec::new());
        self.requests = run.lanes.len();
        for lane in &run.lanes {
            self.cached_tokens += lane.cached;
            ttft.extend(lane.first_token.map(|at| at.saturating_sub(lane.arrived)));
            match &lane.end {
                Some(end) => {
                    *self.ends.entry(end.reason.clone()).or_default() += 1;
                    if matches!(end.reason.as_str(), "stop" | "length") {
                        e2e.push(end.at.saturating_sub(lane.arrived));
                    }
                }
                None => self.unfinished += 1,
            }
        }
        self.ttft_ms = Percentiles::of(ttft);
        self.e2e_ms = Percentiles::of(e2e);
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ends = self.ends.iter().map(|(reason, count)| format!("{count} {reason}"));
        let open = (self.unfinished > 0).then(|| format!("{} unfinished", self.unfinished));
        let ends: Vec<String> = ends.chain(open).collect();
        writeln!(
            f,
            "steps        {:>10}   {} mixed, {} failed",
            self.steps, self.mixed, self.abandoned
        )?;
        writeln!(f, "requests     {:>10}   {}", self.requests, ends.join(", "))?;
        writeln!(f, "seconds      {:>10.3}", self.seconds)?;
        writeln!(
            f,
            "tokens       {:>10}   chosen; {} prefilled, {} found in the cache, {} computed again",
            self.new_tokens, self.prefill_tokens, self.cached_tokens, self.resumed_tokens
        )?;
        if self.draft_tokens > 0 {
            let rate = 100.0 * self.accepted_tokens as f64 / self.draft_tokens as f64;
            let length = 1.0 + self.accepted_tokens as f64 / self.drafted_rows.max(1) as f64;
            writeln!(
                f,
                "drafts       {:>10}   verified in {} rows; {} accepted ({rate:.1}%), mean acceptance length \
                 {length:.2}",
                self.draft_tokens, self.drafted_rows, self.accepted_tokens
            )?;
        }
        writeln!(f, "throughput   {:>10.1}   tokens a second", self.tokens_per_second)?;
        writeln!(f, "preemptions  {:>10}", self.preemptions)?;
        writeln!(
            f,
            "at most      {:>10}   running, {} waiting",
            self.most_running, self.most_waiting
        )?;
        writeln!(f, "KV peak      {:>9.1}%   of the pool", 100.0 * self.kv_peak)?;
        writeln!(f, "milliseconds        p50        p95        p99        max")?;
        let rows = [("TTFT", self.ttft_ms), ("ITL", self.itl_ms), ("E2E", self.e2e_ms)];
        for (name, row) in rows {
            match row {
                Some(Percentiles { p50, p95, p99, max }) => {
                    writeln!(f, "  {name:<10} {p50:>10.3} {p95:>10.3} {p99:>10.3} {max:>10.3}")?;
                }
                None => writeln!(f, "  {name:<10} {:>10}", "-")?,
            }
        }
        let mut shares = String::new();
        for (name, share) in PhasesUs::NAMES.iter().zip(self.shares) {
            // An engine that shares no machine has no turns.
            if *name == "turn" && share == 0.0 {
                continue;
            }
            write!(shares, "   {name} {:.1}%", 100.0 * share)?;
        }
        writeln!(f, "step time {shares}")
    }
}
