//! What a plan comes to.

use std::fmt;

use serde::Serialize;

use super::Durations;
use super::goodput::Goodput;
use crate::SchedulerConfig;

/// What was counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Requests that came.
    pub requests: u64,
    /// Those that got all of their answer.
    pub finished: u64,
    /// Those that could never have fitted.
    pub rejected: u64,
    /// Those that outgrew the pool.
    pub cut_short: u64,
    /// Those with a deadline of their own, of the finished ones.
    pub deadlines: u64,
    /// Those of them that kept it.
    pub deadlines_met: u64,
    /// Those that kept what the goodput asks for.
    pub good: u64,
    /// Steps.
    pub steps: u64,
    /// Times that a request gave way.
    pub preemptions: u64,
    /// Tokens of prompts.
    pub prompt_tokens: u64,
    /// Tokens of answers.
    pub output_tokens: u64,
    /// Tokens computed: prompts less what was cached, answers, and what was computed again.
    pub scheduled_tokens: u64,
}

/// How much of the pool was in use.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Usage {
    weighted: f64,
    seconds: f64,
    max: f64,
}

impl Usage {
    /// So much of it, for so long.
    pub fn add(&mut self, usage: f64, seconds: f64) {
        self.weighted += usage * seconds;
        self.seconds += seconds;
        self.max = self.max.max(usage);
    }

    fn mean(&self) -> f64 {
        if self.seconds > 0.0 { self.weighted / self.seconds } else { 0.0 }
    }
}

/// What a plan comes to: times in seconds, shares from 0 to 1.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Who goes first.
    pub policy: String,
    /// What was counted.
    #[serde(flatten)]
    pub counts: Counts,
    /// From the first arrival to the last end.
    pub seconds: f64,
    /// Finished requests a second.
    pub requests_per_s: f64,
    /// Tokens of answers a second.
    pub output_tokens_per_s: f64,
    /// Tokens of prompts and answers a second.
    pub total_tokens_per_s: f64,
    /// What was asked for, and good requests a second; `None` if nothing was.
    pub goodput: Option<Good>,
    /// From arrival to the first token.
    pub ttft: Option<Latency>,
    /// From token to token of an answer.
    pub itl: Option<Latency>,
    /// From arrival to the last token.
    pub e2e: Option<Latency>,
    /// Of the prompts' tokens, those that were found in the cache.
    pub prefix_hit_rate: f64,
    /// The part of the pool that was in use, over the time of all steps.
    pub kv_usage_mean: f64,
    /// The most of it.
    pub kv_usage_max: f64,
}

/// Requests that are served as well as was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Good {
    /// What was asked for.
    pub deadlines: Goodput,
    /// Good requests a second.
    pub requests_per_s: f64,
    /// The part of all requests that came.
    pub share: f64,
}

/// Exact percentiles, by the nearest rank.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Latency {
    /// The mean.
    pub mean: f64,
    /// Half of them are not longer.
    pub p50: f64,
    /// 95 of 100 are not longer.
    pub p95: f64,
    /// 99 of 100 are not longer.
    pub p99: f64,
    /// The longest.
    pub max: f64,
}

impl Latency {
    /// Of all these; `None` if there are none.
    pub fn of(all: &mut Durations) -> Option<Self> {
        Some(Self {
            mean: all.mean()?,
            p50: all.percentile(50.0)?,
            p95: all.percentile(95.0)?,
            p99: all.percentile(99.0)?,
            max: all.percentile(100.0)?,
        })
    }
}

impl Report {
    pub(super) fn new(
        config: &SchedulerConfig,
        counts: Counts,
        usage: Usage,
        (queries, hits): (u64, u64),
        seconds: f64,
        deadlines: Goodput,
        [ttft, itl, e2e]: [&mut Durations; 3],
    ) -> Self {
        let per_s = |n: u64| if seconds > 0.0 { n as f64 / seconds } else { 0.0 };
        let share = |n: u64, of: u64| if of > 0 { n as f64 / of as f64 } else { 0.0 };
        let goodput = (!deadlines.is_empty()).then(|| Good {
            deadlines,
            requests_per_s: per_s(counts.good),
            share: share(counts.good, counts.requests),
        });
        Self {
            policy: config.policy.to_string(),
            counts,
            seconds,
            requests_per_s: per_s(counts.finished),
            output_tokens_per_s: per_s(counts.output_tokens),
            total_tokens_per_s: per_s(counts.output_tokens + counts.prompt_tokens),
            goodput,
            ttft: Latency::of(ttft),
            itl: Latency::of(itl),
            e2e: Latency::of(e2e),
            prefix_hit_rate: share(hits, queries),
            kv_usage_mean: usage.mean(),
            kv_usage_max: usage.max,
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let c = &self.counts;
        write!(f, "requests    {} came, {} finished", c.requests, c.finished)?;
        for (n, what) in [(c.rejected, "rejected"), (c.cut_short, "outgrew the pool")] {
            if n > 0 {
                write!(f, ", {n} {what}")?;
            }
        }
        writeln!(f, " ({})", self.policy)?;
        writeln!(f, "time        {:.2} s, {} steps", self.seconds, c.steps)?;
        writeln!(
            f,
            "throughput  {:.2} requests/s, {:.1} output tokens/s, {:.1} tokens/s in all",
            self.requests_per_s, self.output_tokens_per_s, self.total_tokens_per_s
        )?;
        if let Some(good) = &self.goodput {
            write!(
                f,
                "goodput     {:.2} requests/s, {:.1}% of them keep",
                good.requests_per_s,
                100.0 * good.share
            )?;
            let d = &good.deadlines;
            for (name, most) in [("ttft", d.ttft), ("itl", d.itl), ("tpot", d.tpot), ("e2e", d.e2e)]
            {
                if let Some(most) = most {
                    write!(f, " {name} <= {most} s")?;
                }
            }
            writeln!(f)?;
        }
        if c.deadlines > 0 {
            writeln!(f, "deadlines   {} of {} kept", c.deadlines_met, c.deadlines)?;
        }
        writeln!(f, "preempted   {} times", c.preemptions)?;
        writeln!(f, "prefix hits {:.1}% of the prompts' tokens", 100.0 * self.prefix_hit_rate)?;
        writeln!(
            f,
            "KV blocks   {:.1}% in use on the average, {:.1}% at most",
            100.0 * self.kv_usage_mean,
            100.0 * self.kv_usage_max
        )?;
        let lines = [("ttft", &self.ttft), ("itl", &self.itl), ("e2e", &self.e2e)];
        if lines.iter().any(|(_, latency)| latency.is_some()) {
            writeln!(
                f,
                "\nseconds {:>10} {:>10} {:>10} {:>10} {:>10}",
                "mean", "p50", "p95", "p99", "max"
            )?;
        }
        for (name, latency) in lines {
            let Some(l) = latency else { continue };
            writeln!(
                f,
                "{name:<7} {:>10.4} {:>10.4} {:>10.4} {:>10.4} {:>10.4}",
                l.mean, l.p50, l.p95, l.p99, l.max
            )?;
        }
        Ok(())
    }
}
