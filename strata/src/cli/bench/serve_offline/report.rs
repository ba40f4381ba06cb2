//! The report, as a table and as JSON.

use std::fmt;
use std::time::Instant;

use l5_scheduler::sim::Durations;
use l5_scheduler::speculation::DraftMethod;
use serde::Serialize;

use super::Served;
use super::meter::Tally;
use crate::cli::bench;
use crate::cli::bench::speculation::SpeculationReport;
use server::words::count;

/// The whole object of `--json`.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    model: String,
    requests: usize,
    input_tokens: usize,
    output_tokens: usize,
    seconds: f64,
    requests_per_s: f64,
    output_tokens_per_s: f64,
    total_tokens_per_s: f64,
    /// Milliseconds.
    ttft_ms: Percentiles,
    itl_ms: Percentiles,
    e2e_ms: Percentiles,
    steps: usize,
    preemptions: usize,
    cached_tokens: usize,
    num_gpu_blocks: usize,
    /// Requests of a step.
    mean_batch: f64,
    /// Plan and apply, of the time of all steps.
    scheduler_share: f64,
    decode: Decode,
    /// Steps that had been captured and were launched as a whole, of all; 0 on a CPU, where nothing is captured.
    replay_rate: f64,
    /// Whether there is anything to replay.
    #[serde(skip)]
    captures: bool,
    /// Absent without speculation.
    #[serde(flatten)]
    speculation: Option<SpeculationReport>,
    #[serde(rename = "static")]
    compared: Option<Compared>,
}

/// Steps that only decode.
#[derive(Debug, Serialize)]
struct Decode {
    steps: usize,
    /// What one request gets, in the median of these steps.
    median_tokens_per_s: f64,
}

/// A batch that was decoded without a scheduler.
#[derive(Debug, Clone, Copy, Serialize)]
pub(super) struct Static {
    /// Sequences.
    pub batch: usize,
    /// Tokens of each when the clock started.
    pub context: usize,
    /// What one of them gets.
    pub tokens_per_s: f64,
}

/// The engine beside it.
#[derive(Debug, Serialize)]
struct Compared {
    #[serde(flatten)]
    alone: Static,
    /// Steps of the engine that only decoded, and as many sequences.
    engine_steps: usize,
    engine_tokens_per_s: Option<f64>,
    /// The engine's rate of the static one.
    ratio: Option<f64>,
}

/// The median, and what one in twenty and one in a hundred exceeds.
#[derive(Debug, Clone, Copy, Serialize)]
struct Percentiles {
    p50: f64,
    p95: f64,
    p99: f64,
}

impl Percentiles {
    /// Of seconds, in milliseconds: nearest rank. Of none: 0.
    fn of(seconds: Vec<f64>) -> Self {
        let mut all = Durations::from_iter(seconds);
        let mut at = |percent| all.percentile(percent).map_or(0.0, |s| s * 1e3);
        Self { p50: at(50.0), p95: at(95.0), p99: at(99.0) }
    }
}

/// The middle one, or the mean of the two; `None` of none.
pub(super) fn median(of: Vec<f64>) -> Option<f64> {
    (!of.is_empty()).then(|| bench::report::median(of.into_iter()))
}

impl Report {
    pub(super) fn new(
        model: &str,
        num_gpu_blocks: usize,
        served: &Served,
        tally: &Tally,
        captures: bool,
        method: Option<DraftMethod>,
        alone: Option<Static>,
    ) -> Self {
        let seconds = served.took.as_secs_f64().max(1e-9);
        let Served { input_tokens, output_tokens, times, .. } = served;
        let since = |to: fn(&l5_scheduler::engine::ResponseTimes) -> Option<Instant>| {
            let of = |t| to(t).map(|at| (at - t.submitted).as_secs_f64());
            Percentiles::of(times.iter().filter_map(of).collect())
        };
        let steps = tally.steps.len();
        let sum = |of: fn(&super::meter::Measure) -> f64| tally.steps.iter().map(of).sum::<f64>();
        let rates = tally.decode_rates(None);
        let compared = alone.map(|alone| {
            let rates = tally.decode_rates(Some(alone.batch));
            let engine_steps = rates.len();
            let engine_tokens_per_s = median(rates);
            let ratio = engine_tokens_per_s.map(|rate| rate / alone.tokens_per_s);
            Compared { alone, engine_steps, engine_tokens_per_s, ratio }
        });
        Self {
            model: model.to_owned(),
            requests: times.len(),
            input_tokens: *input_tokens,
            output_tokens: *output_tokens,
            seconds,
            requests_per_s: times.len() as f64 / seconds,
            output_tokens_per_s: *output_tokens as f64 / seconds,
            total_tokens_per_s: (input_tokens + output_tokens) as f64 / seconds,
            ttft_ms: since(|t| t.first),
            itl_ms: Percentiles::of(tally.gaps.clone()),
            e2e_ms: since(|t| t.last),
            steps,
            preemptions: tally.preemptions,
            cached_tokens: tally.cached,
            num_gpu_blocks,
            mean_batch: sum(|step| step.rows as f64) / steps.max(1) as f64,
            scheduler_share: sum(|step| step.scheduling) / sum(|step| step.seconds).max(1e-9),
            decode: Decode {
                steps: rates.len(),
                median_tokens_per_s: median(rates).unwrap_or(0.0),
            },
            replay_rate: sum(|step| f64::from(u8::from(step.replayed))) / steps.max(1) as f64,
            captures,
            speculation: method.map(|own| SpeculationReport::new(Some(own), tally.drafts)),
            compared,
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { model, requests, input_tokens, output_tokens, seconds, .. } = self;
        writeln!(
            f,
            "{model}: {}, {} in, {output_tokens} out, {seconds:.2} s",
            count(*requests, "request"),
            count(*input_tokens, "token")
        )?;
        writeln!(
            f,
            "throughput   {:.2} requests/s, {:.1} output tokens/s, {:.1} total tokens/s",
            self.requests_per_s, self.output_tokens_per_s, self.total_tokens_per_s
        )?;
        writeln!(f, "{:12} {:>10} {:>10} {:>10}", "latency, ms", "p50", "p95", "p99")?;
        for (name, p) in [("TTFT", self.ttft_ms), ("ITL", self.itl_ms), ("E2E", self.e2e_ms)] {
            writeln!(f, "{name:12} {:>10.2} {:>10.2} {:>10.2}", p.p50, p.p95, p.p99)?;
        }
        writeln!(
            f,
            "steps        {}, {:.1} requests each on average, {}, {} from the cache",
            self.steps,
            self.mean_batch,
            count(self.preemptions, "preemption"),
            count(self.cached_tokens, "token")
        )?;
        writeln!(
            f,
            "scheduler    {:.3}% of a step (plan and apply)",
            self.scheduler_share * 100.0
        )?;
        writeln!(
            f,
            "decode       {:.2} tokens/s per request, median of {} without prefill",
            self.decode.median_tokens_per_s,
            count(self.decode.steps, "step")
        )?;
        if self.captures {
            writeln!(
                f,
                "replay rate  {:.1}% of the steps were replayed, the others launched eagerly",
                self.replay_rate * 100.0
            )?;
        }
        if let Some(speculation) = &self.speculation {
            writeln!(f, "{speculation}")?;
        }
        let Some(compared) = &self.compared else { return Ok(()) };
        let Static { batch, context, tokens_per_s } = compared.alone;
        writeln!(
            f,
            "static       {tokens_per_s:.2} tokens/s per sequence, {} of {}, without a scheduler",
            count(batch, "sequence"),
            count(context, "token")
        )?;
        match (compared.engine_tokens_per_s, compared.ratio) {
            (Some(rate), Some(ratio)) => writeln!(
                f,
                "             {rate:.2} in the engine's {} steps of that batch size: {:.1}%",
                compared.engine_steps,
                ratio * 100.0
            ),
            _ => writeln!(
                f,
                "             the engine had no step of that batch size without prefill"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_values_that_came_up() {
        let p = Percentiles::of((1..=200).rev().map(|i| f64::from(i) / 1e3).collect());
        assert_eq!((p.p50, p.p95, p.p99), (100.0, 190.0, 198.0));
        let one = Percentiles::of(vec![0.5]);
        assert_eq!((one.p50, one.p99), (500.0, 500.0));
        assert_eq!(Percentiles::of(vec![]).p99, 0.0);
    }

    #[test]
    fn the_median_of_an_even_number_lies_between_two() {
        assert_eq!(median(vec![4.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(vec![4.0, 1.0]), Some(2.5));
        assert_eq!(median(vec![]), None);
    }
}
