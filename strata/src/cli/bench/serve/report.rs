//! The report, as a table and as JSON.

use std::collections::BTreeMap;
use std::fmt;

use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};

use super::arrivals::Load;
use super::client::Record;
use super::drive::Driven;
use super::failure::Failure;
use super::goodput::Bounds;
use super::measure::{Latencies, Sample, peak};
use crate::cli::bench::speculation::SpeculationReport;
use server::words::count;

/// Delay of sending, in milliseconds, above which the client may be what was measured.
const LATE: f64 = 20.0;
/// Share of a core above which the client may be what was measured.
const BUSY: f64 = 0.8;

/// The whole object of `--json`. What `vllm bench serve` saves too has the name that it has there.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    url: String,
    model_id: String,
    /// `open` or `closed`.
    load: &'static str,
    /// Of an open loop: requests a second, as they were due. `None`: all at once.
    request_rate: Option<f64>,
    /// Of a closed loop.
    max_concurrency: Option<usize>,
    num_prompts: usize,
    /// Seconds from the beginning to the end of the last request.
    duration: f64,
    completed: usize,
    failed: usize,
    /// Ended by Ctrl-C, or never sent because of it.
    interrupted: usize,
    /// Failures by kind.
    errors: BTreeMap<String, usize>,
    /// One message of each kind.
    error_examples: BTreeMap<String, String>,
    /// Rejections with status 429 and their Retry-After.
    rate_limited: RateLimited,
    /// `null` if the server did not say.
    total_input_tokens: Option<u64>,
    cached_tokens: Option<u64>,
    total_output_tokens: u64,
    /// `false`: the server counted no tokens, and each chunk was taken for one.
    counted_by_server: bool,
    tokens_per_chunk: Option<f64>,
    request_throughput: f64,
    output_throughput: f64,
    total_token_throughput: Option<f64>,
    request_goodput: Option<f64>,
    /// Fraction of all requests that met the bounds.
    good_fraction: Option<f64>,
    goodput_bounds_ms: Option<BTreeMap<&'static str, f64>>,
    max_concurrent_requests: usize,
    #[serde(flatten)]
    ttft: Spread,
    #[serde(flatten)]
    tpot: Spread,
    #[serde(flatten)]
    itl: Spread,
    #[serde(flatten)]
    e2el: Spread,
    /// How long requests waited in the server, by its own word.
    #[serde(flatten)]
    queue: Spread,
    /// How long after their moments requests were sent.
    #[serde(flatten)]
    send_delay: Spread,
    /// What GETs of `--probe` took.
    #[serde(flatten)]
    probe: Spread,
    probe_failed: usize,
    client: Cost,
    /// Drafts of the server while it was measured; absent if it does not speculate.
    #[serde(flatten)]
    speculation: Option<SpeculationReport>,
}

/// Refusals with 429.
#[derive(Debug, Serialize)]
struct RateLimited {
    requests: usize,
    with_retry_after: usize,
    max_retry_after_s: Option<u64>,
}

/// What the client itself took.
#[derive(Debug, Clone, Copy, Serialize)]
struct Cost {
    /// Processor time, in seconds; `None` if the system does not report it.
    cpu_s: Option<f64>,
    cpu_s_per_1000_tokens: Option<f64>,
    /// Of one core, on average.
    cpu_share: Option<f64>,
}

/// One latency over all requests, in milliseconds: `mean_ttft_ms`, `p99_ttft_ms`...
#[derive(Debug)]
pub(super) struct Spread {
    name: &'static str,
    sample: Sample,
}

impl Spread {
    fn new(name: &'static str, seconds: impl Iterator<Item = f64>) -> Self {
        Self { name, sample: seconds.map(|s| s * 1e3).collect() }
    }

    /// Milliseconds, the smallest first.
    pub(super) fn sample(&self) -> &Sample {
        &self.sample
    }
}

impl Serialize for Spread {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let Self { name, sample } = self;
        let mut map = to.serialize_map(None)?;
        map.serialize_entry(&format!("mean_{name}_ms"), &sample.mean())?;
        map.serialize_entry(&format!("median_{name}_ms"), &sample.percentile(50.0))?;
        map.serialize_entry(&format!("std_{name}_ms"), &sample.std())?;
        for percent in [50, 90, 95, 99] {
            let value = sample.percentile(f64::from(percent));
            map.serialize_entry(&format!("p{percent}_{name}_ms"), &value)?;
        }
        map.serialize_entry(&format!("max_{name}_ms"), &sample.max())?;
        map.end()
    }
}

/// What the report is about.
pub(super) struct Subject<'a> {
    /// Where requests went.
    pub url: &'a str,
    /// The model that they named.
    pub model: &'a str,
    /// How they were sent.
    pub load: &'a Load,
    /// Bounds of goodput.
    pub bounds: Option<Bounds>,
    /// Seconds of a processor that the client took.
    pub cpu: Option<f64>,
    /// Drafts of the server.
    pub speculation: Option<SpeculationReport>,
}

impl Report {
    pub(super) fn new(subject: &Subject<'_>, driven: &Driven) -> Self {
        let records = &driven.records;
        let good: Vec<(&Record, Latencies)> =
            records.iter().filter_map(|r| Some((r, r.latencies()?))).collect();
        let successful = || good.iter().map(|(record, _)| *record);
        let latencies = || good.iter().map(|(_, latencies)| latencies);
        let duration = records.iter().map(|r| r.end).fold(0.0, f64::max).max(1e-9);
        let counted_by_server = !good.is_empty() && successful().all(|r| r.usage.is_some());
        let inputs: Option<u64> =
            successful().map(|r| r.usage.map(|usage| usage.prompt_tokens)).sum();
        let total_input_tokens = inputs.filter(|_| !good.is_empty());
        let cached: Option<u64> = successful().map(Record::cached).sum();
        let total_output_tokens = successful().map(Record::tokens).sum();
        let chunks: usize = successful().map(|r| r.chunks.len()).sum();
        let kept = subject.bounds.map(|b| latencies().filter(|l| b.kept_by(l)).count());
        let num_prompts = records.len() + driven.interrupted;
        let (mut errors, mut error_examples) = (BTreeMap::new(), BTreeMap::new());
        for failure in records.iter().filter_map(|r| r.failure.as_ref()) {
            *errors.entry(failure.kind()).or_insert(0) += 1;
            error_examples.entry(failure.kind()).or_insert_with(|| failure.to_string());
        }
        let (request_rate, max_concurrency, load) = match subject.load {
            Load::Open(moments) => (rate(moments), None, "open"),
            Load::Closed(limit) => (None, Some(*limit), "closed"),
        };
        let probes = &driven.probes;
        Self {
            url: subject.url.to_owned(),
            model_id: subject.model.to_owned(),
            load,
            request_rate,
            max_concurrency,
            num_prompts,
            duration,
            completed: good.len(),
            failed: records.len() - good.len(),
            interrupted: driven.interrupted,
            errors,
            error_examples,
            rate_limited: RateLimited::of(records),
            total_input_tokens,
            cached_tokens: cached.filter(|_| !good.is_empty()),
            total_output_tokens,
            counted_by_server,
            tokens_per_chunk: (chunks > 0).then(|| total_output_tokens as f64 / chunks as f64),
            request_throughput: good.len() as f64 / duration,
            output_throughput: total_output_tokens as f64 / duration,
            total_token_throughput: total_input_tokens
                .map(|input| (input + total_output_tokens) as f64 / duration),
            request_goodput: kept.map(|kept| kept as f64 / duration),
            good_fraction: kept.map(|kept| kept as f64 / num_prompts.max(1) as f64),
            goodput_bounds_ms: subject.bounds.map(|bounds| bounds.named().collect()),
            max_concurrent_requests: peak(records),
            ttft: Spread::new("ttft", latencies().map(|l| l.ttft)),
            tpot: Spread::new("tpot", latencies().filter_map(|l| l.tpot)),
            itl: Spread::new("itl", successful().flat_map(Record::gaps)),
            e2el: Spread::new("e2el", latencies().map(|l| l.e2el)),
            queue: Spread::new("queue", successful().filter_map(|r| Some(r.queue_ms? / 1e3))),
            send_delay: Spread::new("send_delay", records.iter().map(|r| r.sent - r.due)),
            probe: Spread::new("probe", probes.iter().copied().flatten()),
            probe_failed: probes.iter().filter(|probe| probe.is_none()).count(),
            client: Cost::new(subject.cpu, total_output_tokens, duration),
            speculation: subject.speculation,
        }
    }

    /// Returns whether any request succeeded.
    pub(super) fn has_responses(&self) -> bool {
        self.completed > 0
    }

    /// One message of a failure, if there was one.
    pub(super) fn first_error(&self) -> Option<&str> {
        self.error_examples.values().next().map(String::as_str)
    }

    /// Seconds of the whole run.
    pub(super) fn duration(&self) -> f64 {
        self.duration
    }

    /// The latencies of a plot, with their names.
    pub(super) fn plotted(&self) -> [(&'static str, &Spread); 3] {
        [("TTFT", &self.ttft), ("ITL", &self.itl), ("E2E", &self.e2el)]
    }

    /// The line above a plot.
    pub(super) fn title(&self) -> String {
        format!("{}, {}: {}", self.model_id, self.offered(), self.throughput())
    }

    fn offered(&self) -> String {
        let requests = count(self.num_prompts, "request");
        match (self.request_rate, self.max_concurrency) {
            (Some(rate), _) => format!("{requests} at {rate:.2}/s"),
            (None, Some(limit)) => format!("{requests}, concurrency {limit}"),
            (None, None) => format!("{requests} at once"),
        }
    }

    fn throughput(&self) -> String {
        format!(
            "{:.2} requests/s, {:.1} output tokens/s",
            self.request_throughput, self.output_throughput
        )
    }

    /// Reasons to doubt the figures.
    fn doubts(&self) -> Vec<String> {
        let mut all = Vec::new();
        let late = self.send_delay.sample.percentile(99.0).unwrap_or(0.0);
        if late > LATE {
            all.push(format!(
                "1% of requests were sent at least {late:.0} ms late: the client did not keep up"
            ));
        }
        if let Some(share) = self.client.cpu_share.filter(|share| *share > BUSY) {
            all.push(format!("the client kept {:.0}% of a core busy", share * 100.0));
        }
        if self.has_responses() && !self.counted_by_server {
            all.push(
                "the server reported no token counts: each chunk was counted as one token"
                    .to_owned(),
            );
        }
        all
    }
}

/// Requests a second of moments; `None` where all come at once.
fn rate(moments: &[f64]) -> Option<f64> {
    let last = moments.last().copied().filter(|last| *last > 0.0)?;
    Some((moments.len() - 1) as f64 / last)
}

impl RateLimited {
    fn of(records: &[Record]) -> Self {
        let after: Vec<Option<u64>> = records
            .iter()
            .filter_map(|record| match record.failure {
                Some(Failure::Status { status: 429, retry_after, .. }) => Some(retry_after),
                _ => None,
            })
            .collect();
        Self {
            requests: after.len(),
            with_retry_after: after.iter().flatten().count(),
            max_retry_after_s: after.iter().copied().flatten().max(),
        }
    }
}

impl Cost {
    fn new(cpu_s: Option<f64>, tokens: u64, duration: f64) -> Self {
        Self {
            cpu_s,
            cpu_s_per_1000_tokens: cpu_s
                .filter(|_| tokens > 0)
                .map(|cpu| cpu / tokens as f64 * 1e3),
            cpu_share: cpu_s.map(|cpu| cpu / duration),
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}, model {}: {}", self.url, self.model_id, self.offered())?;
        let Self { completed, failed, duration, .. } = self;
        writeln!(
            f,
            "requests     {completed} completed, {failed} failed, {duration:.2} s, at most {} in flight",
            self.max_concurrent_requests
        )?;
        for (kind, count) in &self.errors {
            let example = self.error_examples.get(kind).map_or("", String::as_str);
            writeln!(f, "  {count:<8} {kind}, for example: {example}")?;
        }
        if let Some(most) = self.rate_limited.max_retry_after_s {
            let given = self.rate_limited.with_retry_after;
            writeln!(f, "  {given:<8} with Retry-After, at most {most} s")?;
        }
        let count = |tokens: Option<u64>| tokens.map_or("?".to_owned(), |n| n.to_string());
        write!(f, "tokens       {} in", count(self.total_input_tokens))?;
        if let Some(cached) = self.cached_tokens {
            write!(f, " ({cached} from the cache)")?;
        }
        write!(f, ", {} out", self.total_output_tokens)?;
        match self.tokens_per_chunk {
            Some(each) => writeln!(f, ", {each:.2} in a chunk")?,
            None => writeln!(f)?,
        }
        write!(f, "throughput   {}", self.throughput())?;
        match self.total_token_throughput {
            Some(rate) => writeln!(f, ", {rate:.1} total tokens/s")?,
            None => writeln!(f)?,
        }
        if let (Some(rate), Some(fraction), Some(bounds)) =
            (self.request_goodput, self.good_fraction, &self.goodput_bounds_ms)
        {
            let bounds: Vec<String> =
                bounds.iter().map(|(name, ms)| format!("{name} {ms} ms")).collect();
            writeln!(
                f,
                "goodput      {rate:.2} requests/s, {:.1}% of all, within {}",
                fraction * 100.0,
                bounds.join(", ")
            )?;
        }
        let columns = ["mean", "p50", "p90", "p95", "p99", "max"];
        write!(f, "{:12}", "latency, ms")?;
        columns.iter().try_for_each(|column| write!(f, " {column:>10}"))?;
        writeln!(f)?;
        for (name, spread) in [
            ("TTFT", &self.ttft),
            ("ITL", &self.itl),
            ("TPOT", &self.tpot),
            ("E2E", &self.e2el),
            ("queue", &self.queue),
            ("sent late", &self.send_delay),
            ("probe", &self.probe),
        ] {
            spread.row(name, f)?;
        }
        if self.probe_failed > 0 {
            writeln!(f, "probe        {} failed", self.probe_failed)?;
        }
        if let Some(speculation) = &self.speculation {
            writeln!(f, "{speculation}")?;
        }
        if let Cost { cpu_s: Some(cpu), cpu_share: Some(share), .. } = self.client {
            write!(f, "client       {cpu:.2} s of CPU time, {:.1}% of one core", share * 100.0)?;
            match self.client.cpu_s_per_1000_tokens {
                Some(each) => writeln!(f, ", {:.2} ms for 1,000 tokens", each * 1e3)?,
                None => writeln!(f)?,
            }
        }
        self.doubts().iter().try_for_each(|doubt| writeln!(f, "note         {doubt}"))
    }
}

impl Spread {
    /// A row of the table; nothing, where nothing was measured.
    fn row(&self, name: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(mean) = self.sample.mean() else { return Ok(()) };
        write!(f, "{name:12} {mean:>10.2}")?;
        for percent in [50.0, 90.0, 95.0, 99.0, 100.0] {
            write!(f, " {:>10.2}", self.sample.percentile(percent).unwrap_or(mean))?;
        }
        writeln!(f)
    }
}

#[cfg(test)]
mod tests {
    use super::super::measure::tests::record;
    use super::*;
    use serde_json::{Value, json};

    fn report(records: Vec<Record>, bounds: &str) -> Report {
        let driven = Driven { records, interrupted: 0, probes: Vec::new() };
        let subject = Subject {
            url: "http://host/v1/completions",
            model: "tiny",
            load: &Load::Open(vec![0.0, 1.0, 2.0]),
            bounds: bounds.parse().ok(),
            cpu: Some(0.01),
            speculation: None,
        };
        Report::new(&subject, &driven)
    }

    fn limited(retry_after: Option<u64>) -> Record {
        let message = "full".to_owned();
        let failure = Some(Failure::Status { status: 429, message, retry_after });
        Record { chunks: Vec::new(), usage: None, end: 2.0, failure, ..record() }
    }

    #[test]
    fn figures_have_the_names_and_meanings_of_vllms_benchmark() {
        let json: Value = serde_json::to_value(report(
            vec![record(), limited(Some(7)), limited(None)],
            "ttft:600",
        ))
        .unwrap();
        for (name, value) in [
            ("num_prompts", json!(3)),
            ("completed", json!(1)),
            ("failed", json!(2)),
            ("errors", json!({"status 429": 2})),
            ("duration", json!(2.5)),
            ("total_input_tokens", json!(9)),
            ("total_output_tokens", json!(5)),
            ("request_throughput", json!(0.4)),
            ("output_throughput", json!(2.0)),
            ("total_token_throughput", json!(5.6)),
            ("request_goodput", json!(0.4)),
            ("request_rate", json!(1.0)),
            ("mean_ttft_ms", json!(500.0)),
            ("median_tpot_ms", json!(250.0)),
            ("p50_itl_ms", json!(500.0)),
            ("max_e2el_ms", json!(1500.0)),
            ("mean_queue_ms", Value::Null),
            ("max_concurrent_requests", json!(3)),
        ] {
            assert_eq!(json[name], value, "{name}");
        }
        let limits = json!({"requests": 2, "with_retry_after": 1, "max_retry_after_s": 7});
        assert_eq!(json["rate_limited"], limits);
    }

    #[test]
    fn doubtful_figures_have_a_note() {
        let text = report(vec![Record { usage: None, ..record() }], "").to_string();
        assert!(
            text.contains("at least 250 ms late") && text.contains("no token counts"),
            "{text}"
        );
        let punctual = Record { sent: 1.0, ..record() };
        assert!(!report(vec![punctual], "").to_string().contains("note"));
    }

    #[test]
    fn a_run_without_a_response_can_be_reported() {
        let report = report(vec![limited(None)], "itl:5");
        assert!(!report.has_responses());
        assert_eq!(report.first_error(), Some("status 429: full"));
        let text = report.to_string();
        assert!(text.contains("1        status 429") && !text.contains("TTFT"), "{text}");
        assert_eq!(serde_json::to_value(&report).unwrap()["total_input_tokens"], Value::Null);
    }
}
