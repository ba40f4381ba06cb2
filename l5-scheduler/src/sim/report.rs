//! Report of a capacity plan.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

use super::Durations;
use super::agent_report::AgentReport;
use super::drafting::SpeculationReport;
use super::goodput::Goodput;
use super::host_memory::HostMemoryReport;
use super::job_log::JobLog;
use super::replayable::ReplayableSteps;

/// Counters of a plan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Number of requests that arrived.
    pub requests: u64,
    /// Number of requests that got their whole output.
    pub finished: u64,
    /// Number of requests that were rejected, because they could never be completed.
    pub rejected: u64,
    /// Number of requests that ended early, because they outgrew the pool.
    pub cut_short: u64,
    /// Number of finished requests with a deadline.
    pub deadlines: u64,
    /// Number of finished requests that met their deadline.
    pub deadlines_met: u64,
    /// Number of requests that met the goodput's bounds.
    pub good: u64,
    /// Number of steps, also of those without rows.
    pub steps: u64,
    /// Number of preemptions.
    pub preemptions: u64,
    /// Number of prompt tokens.
    pub prompt_tokens: u64,
    /// Number of output tokens.
    pub output_tokens: u64,
    /// Number of tokens computed: prompts less cached tokens, output, and tokens computed again after
    /// preemptions.
    pub scheduled_tokens: u64,
}

/// KV cache usage over time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Usage {
    weighted: f64,
    seconds: f64,
    max: f64,
}

impl Usage {
    /// Adds a usage that lasted `seconds`.
    pub fn add(&mut self, usage: f64, seconds: f64) {
        self.weighted += usage * seconds;
        self.seconds += seconds;
        self.max = self.max.max(usage);
    }

    fn mean(&self) -> f64 {
        if self.seconds > 0.0 { self.weighted / self.seconds } else { 0.0 }
    }
}

/// Result of a plan: times in seconds, fractions from 0 to 1.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Name of the policy.
    pub policy: String,
    /// Name of the composer.
    pub compose: String,
    /// Counters.
    #[serde(flatten)]
    pub counts: Counts,
    /// Number of rejected requests for each reason, by its [code](crate::Rejection::code).
    pub rejections: BTreeMap<&'static str, u64>,
    /// Seconds from the first arrival to the last end of a request.
    pub seconds: f64,
    /// Finished requests per second.
    pub requests_per_s: f64,
    /// Output tokens per second.
    pub output_tokens_per_s: f64,
    /// Prompt and output tokens per second.
    pub total_tokens_per_s: f64,
    /// Goodput; `None` if no bounds were set.
    pub goodput: Option<GoodputReport>,
    /// Time to first token.
    pub ttft: Option<Latency>,
    /// Inter-token latency.
    pub itl: Option<Latency>,
    /// End-to-end latency.
    pub e2e: Option<Latency>,
    /// Fraction of prompt tokens that were in the prefix cache.
    pub prefix_hit_rate: f64,
    /// Mean KV cache usage, over the time of all steps.
    pub kv_usage_mean: f64,
    /// Largest KV cache usage.
    pub kv_usage_max: f64,
    /// Steps that a device would replay; `None` if no captured widths were given.
    pub replay: Option<ReplayReport>,
    /// Drafts; `None` without speculation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub speculation: Option<SpeculationReport>,
    /// Report on the jobs of agents; `None` if the requests were no such jobs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agents: Option<AgentReport>,
    /// What the host memory held; `None` without one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host_memory: Option<HostMemoryReport>,
    /// Each job and turn; `None` if jobs were not recorded.
    #[serde(flatten)]
    pub job_log: Option<JobLog>,
}

/// Steps of a plan that a device would replay.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ReplayReport {
    /// Counters.
    #[serde(flatten)]
    pub steps: ReplayableSteps,
    /// Replayable steps as a fraction of the steps with rows.
    pub rate: f64,
}

impl From<ReplayableSteps> for ReplayReport {
    fn from(steps: ReplayableSteps) -> Self {
        Self { steps, rate: steps.rate() }
    }
}

/// Goodput of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct GoodputReport {
    /// Bounds that a good request meets.
    pub deadlines: Goodput,
    /// Good requests per second.
    pub requests_per_s: f64,
    /// Good requests as a fraction of all requests that arrived.
    pub share: f64,
}

/// Exact percentiles (nearest rank), in seconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Latency {
    /// Mean.
    pub mean: f64,
    /// Median.
    pub p50: f64,
    /// 95th percentile.
    pub p95: f64,
    /// 99th percentile.
    pub p99: f64,
    /// Maximum.
    pub max: f64,
}

impl Latency {
    /// Percentiles of durations; `None` without durations.
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
        (policy, compose): (&str, &str),
        counts: Counts,
        usage: Usage,
        (queries, hits): (u64, u64),
        seconds: f64,
        deadlines: Goodput,
        [ttft, itl, e2e]: [&mut Durations; 3],
    ) -> Self {
        let per_s = |n: u64| if seconds > 0.0 { n as f64 / seconds } else { 0.0 };
        let share = |n: u64, of: u64| if of > 0 { n as f64 / of as f64 } else { 0.0 };
        let goodput = (!deadlines.is_empty()).then(|| GoodputReport {
            deadlines,
            requests_per_s: per_s(counts.good),
            share: share(counts.good, counts.requests),
        });
        Self {
            policy: policy.to_owned(),
            compose: compose.to_owned(),
            counts,
            rejections: BTreeMap::new(),
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
            replay: None,
            speculation: None,
            agents: None,
            host_memory: None,
            job_log: None,
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let c = &self.counts;
        write!(f, "requests    {} came, {} finished", c.requests, c.finished)?;
        if c.rejected > 0 {
            let reasons = self.rejections.iter().map(|(code, n)| format!("{n} {code}"));
            let reasons: Vec<_> = reasons.collect();
            write!(f, ", {} rejected ({})", c.rejected, reasons.join(", "))?;
        }
        if c.cut_short > 0 {
            write!(f, ", {} outgrew the pool", c.cut_short)?;
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
        if let Some(ReplayReport { steps, rate }) = &self.replay {
            writeln!(
                f,
                "replayable  {} of {} steps ({:.1}%): at most {} rows, all decode ({})",
                steps.replayable,
                steps.executed,
                100.0 * rate,
                steps.widest,
                self.compose
            )?;
        }
        if let Some(s) = &self.speculation {
            writeln!(
                f,
                "drafts      {} of {} accepted, {:.2} tokens for each row that sampled",
                s.accepted_tokens, s.draft_tokens, s.tokens_per_row
            )?;
        }
        writeln!(f, "preempted   {} times", c.preemptions)?;
        writeln!(f, "prefix hits {:.1}% of the prompts' tokens", 100.0 * self.prefix_hit_rate)?;
        writeln!(
            f,
            "KV blocks   {:.1}% in use on the average, {:.1}% at most",
            100.0 * self.kv_usage_mean,
            100.0 * self.kv_usage_max
        )?;
        if let Some(host) = &self.host_memory {
            writeln!(
                f,
                "host memory {} of {} blocks in use, {} evicted, {:.1} MB loaded, {:.1} MB stored",
                host.used_blocks,
                host.capacity_blocks,
                host.evicted_blocks,
                host.loaded_bytes / 1e6,
                host.stored_bytes / 1e6
            )?;
        }
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
        match &self.agents {
            Some(agents) => write!(f, "\n{agents}"),
            None => Ok(()),
        }
    }
}
