//! Report on the jobs of agents.

use std::fmt;

use serde::Serialize;

use super::{Durations, Measured};

/// Report on the jobs of agents: times in seconds, fractions from 0 to 1.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct AgentReport {
    /// Number of jobs that arrived.
    pub jobs: u64,
    /// Number of jobs of which all turns got their whole output.
    pub finished: u64,
    /// Number of jobs that ended with a turn that was rejected or outgrew the pool.
    pub ended_early: u64,
    /// Number of turns that got their whole output.
    pub turns: u64,
    /// From the arrival of a finished job to the end of its last turn.
    pub e2e: Option<Percentiles>,
    /// Part of it in which tools ran.
    pub tools: Option<Percentiles>,
    /// From the arrival of a turn to the beginning of its first step.
    pub wait: Option<Percentiles>,
    /// First turns of jobs, and the prefix cache.
    pub first_turns: TurnHits,
    /// Later turns, and the prefix cache.
    pub later_turns: TurnHits,
}

/// Exact percentiles (nearest rank), in seconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Percentiles {
    /// Mean.
    pub mean: f64,
    /// Median.
    pub p50: f64,
    /// 90th percentile.
    pub p90: f64,
    /// 99th percentile.
    pub p99: f64,
    /// Maximum.
    pub max: f64,
}

impl Percentiles {
    /// Percentiles of durations; `None` without durations.
    pub fn of(all: &mut Durations) -> Option<Self> {
        Some(Self {
            mean: all.mean()?,
            p50: all.percentile(50.0)?,
            p90: all.percentile(90.0)?,
            p99: all.percentile(99.0)?,
            max: all.percentile(100.0)?,
        })
    }
}

/// Prompt tokens of turns, and how many of them were in the prefix cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct TurnHits {
    /// Number of turns.
    pub turns: u64,
    /// Prompt tokens.
    pub prompt_tokens: u64,
    /// Prompt tokens that were in the prefix cache when the turn was admitted.
    pub cached_tokens: u64,
    /// Prompt tokens that had been loaded from another memory.
    pub loaded_tokens: u64,
    /// `cached_tokens` as a fraction of `prompt_tokens`.
    pub hit_rate: f64,
}

impl TurnHits {
    /// Adds a turn.
    pub(super) fn add(&mut self, turn: &Measured) {
        self.turns += 1;
        self.prompt_tokens += turn.prompt_tokens as u64;
        self.cached_tokens += turn.cached_tokens as u64;
        self.loaded_tokens += turn.loaded_tokens as u64;
        self.hit_rate = self.cached_tokens as f64 / self.prompt_tokens as f64;
    }
}

impl fmt::Display for AgentReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "jobs        {} came, {} finished", self.jobs, self.finished)?;
        if self.ended_early > 0 {
            write!(f, ", {} ended early", self.ended_early)?;
        }
        writeln!(f, ", {} turns", self.turns)?;
        let (first, later) = (&self.first_turns, &self.later_turns);
        write!(
            f,
            "job hits    {:.1}% of the prompts' tokens in first turns, {:.1}% in later ones",
            100.0 * first.hit_rate,
            100.0 * later.hit_rate
        )?;
        if later.loaded_tokens > 0 {
            let share = later.loaded_tokens as f64 / later.prompt_tokens as f64;
            write!(f, ", and {:.1}% loaded", 100.0 * share)?;
        }
        writeln!(f)?;
        let lines = [("e2e", &self.e2e), ("tools", &self.tools), ("wait", &self.wait)];
        if lines.iter().any(|(_, all)| all.is_some()) {
            writeln!(
                f,
                "\njobs    {:>10} {:>10} {:>10} {:>10} {:>10}",
                "mean", "p50", "p90", "p99", "max"
            )?;
        }
        for (name, all) in lines {
            let Some(p) = all else { continue };
            writeln!(
                f,
                "{name:<7} {:>10.4} {:>10.4} {:>10.4} {:>10.4} {:>10.4}",
                p.mean, p.p50, p.p90, p.p99, p.max
            )?;
        }
        Ok(())
    }
}
