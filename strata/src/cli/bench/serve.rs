//! `strata bench serve`: a client that measures a server.
//!
//! It measures any server of OpenAI's API, so that Strata can be compared with others. There are two kinds of load. An
//! **open loop** sends each request when it is due, as independent users do; latencies count from that time, so that a
//! server (or a client) that falls behind cannot hide it. (Gil Tene called the opposite coordinated omission.) A
//! **closed loop** keeps a number of requests in flight, which finds the maximum throughput of a server.

pub(super) mod arrivals;
pub(super) mod client;
pub(super) mod dataset;
mod drive;
pub(super) mod failure;
mod goodput;
pub(super) mod measure;
mod plot;
mod progress;
mod report;
mod stream;
mod timeline;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::bail;
use bytes::Bytes;
use serde_json::{Map, Value};

use super::span::Span;
use super::speculation::{DraftTotals, SpeculationReport};
use super::{at_least_one, positive};
use crate::cli::context::Context;
use crate::cli::error::CliError;
use crate::cli::out;
use arrivals::{Load, moments};
use client::Client;
use dataset::{BenchRequest, Endpoint, Form, Format, Shape};
use drive::{Driven, drive};
use goodput::Bounds;
use progress::Progress;
use report::{Report, Subject};
use server::words::count;

/// Default number of synthetic requests.
const REQUESTS: usize = 100;
/// Maximum timeout in seconds: clocks cannot represent times much further away.
pub(super) const LONGEST_TIMEOUT: f64 = 1e7;

/// Measure a server of OpenAI's API: throughput, latencies, goodput
///
/// Latencies are seen from the client and have the meanings of `vllm bench serve`: TTFT to the first chunk that brings
/// tokens, ITL between such chunks, TPOT the mean time of a token after the first, E2E to the last chunk. With --rate
/// they count from the moment at which a request was due.
#[derive(Debug, clap::Args)]
pub struct ServeBenchArgs {
    /// URL of the server, such as http://127.0.0.1:8000
    #[arg(long, visible_alias = "base-url", value_name = "URL", value_parser = url)]
    url: String,
    /// Requests per second, with random arrivals, however many are in flight [default: all at once]
    #[arg(long, visible_alias = "request-rate", value_name = "R", value_parser = positive, conflicts_with = "concurrency")]
    rate: Option<f64>,
    /// Burstiness of arrivals: 1 is a Poisson process, lower values are burstier, higher values more even
    #[arg(long, value_name = "B", value_parser = positive, default_value_t = 1.0, requires = "rate")]
    burstiness: f64,
    /// Keep this many requests in flight instead: each that ends starts the next one
    #[arg(long, value_name = "C", value_parser = at_least_one)]
    concurrency: Option<usize>,
    /// Number of requests [default: 100, or as many as the file has; a file with fewer is repeated]
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    num_prompts: Option<usize>,
    /// `synthetic`, or a file with one request per line: {"prompt" or "tokens" or "messages", "max_tokens", "arrival"}.
    /// If all have an `arrival` (in seconds), they are sent at these times, unless --rate or --concurrency is given
    #[arg(long, value_name = "synthetic|FILE.jsonl", default_value = "synthetic")]
    dataset: PathBuf,
    /// Number of tokens of a synthetic prompt
    #[arg(long, value_name = "N", value_parser = at_least_one, default_value_t = 128)]
    input_len: usize,
    /// Number of tokens of a completion
    #[arg(long, value_name = "N", value_parser = at_least_one, default_value_t = 64)]
    output_len: usize,
    /// Draw both lengths of synthetic requests from length * (1 - R) to length * (1 + R)
    #[arg(long, value_name = "R", value_parser = ratio, default_value_t = 0.0)]
    range_ratio: f64,
    /// Number of tokens that all synthetic prompts share at their beginning; in a chat they are the system message
    #[arg(long, value_name = "N", default_value_t = 0)]
    shared_prefix: usize,
    /// Format of synthetic prompts: token ids or text [default: ids for completions, text for chat]
    #[arg(long, value_name = "FORMAT")]
    format: Option<Format>,
    /// Range of the token ids of synthetic prompts, from A to B
    #[arg(long, value_name = "A,B", default_value = "1000,9999")]
    token_ids: Span,
    /// Endpoint to send requests to
    #[arg(long, value_name = "ENDPOINT", default_value = "completions")]
    endpoint: Endpoint,
    /// Model to request [default: the first one that the server lists]
    #[arg(long, value_name = "NAME")]
    model: Option<String>,
    /// API key of the server
    #[arg(long, value_name = "KEY", env = "OPENAI_API_KEY", hide_env_values = true)]
    api_key: Option<String>,
    /// Sampling temperature; 0 for the most likely token
    #[arg(long, value_name = "T", default_value_t = 0.0)]
    temperature: f64,
    /// Continue past the model's end tokens, so that completions reach their full length [default: true for synthetic
    /// requests]. OpenAI's own servers do not accept this field
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
    ignore_eos: Option<bool>,
    /// Additional fields of every request, as a JSON object; null removes a field
    #[arg(long, value_name = "JSON", value_parser = object, default_value = "{}")]
    extra_body: Object,
    /// Also report requests per second that meet all of these bounds: ttft, itl (the longest time between two chunks of
    /// the response), tpot (the mean), e2e. Units are ms and s; a number without a unit is in milliseconds, as in
    /// vLLM's client (in seconds in `strata simulate`)
    #[arg(long, value_name = "ttft:500ms,itl:50ms,..")]
    goodput: Option<Bounds>,
    /// During the run, GET this path every 50 ms and report its latency, such as /health
    #[arg(long, value_name = "PATH", value_parser = path)]
    probe: Option<String>,
    /// Read /metrics before and after, and report how often drafts of the server were accepted: acceptance rate and
    /// mean acceptance length. The counts are of the whole server
    #[arg(long)]
    speculation: bool,
    /// Seed of lengths, tokens and arrivals. A repeated run with the same seed finds its prompts in the server's prefix
    /// cache
    #[arg(long, value_name = "SEED", default_value_t = 0)]
    seed: u64,
    /// Number of warm-up requests before the measurement, sent one after the other and not counted
    #[arg(long, value_name = "N", default_value_t = 1)]
    warmup: usize,
    /// Time after which a request is abandoned
    #[arg(long, value_name = "SECONDS", value_parser = positive, default_value_t = 600.0)]
    timeout: f64,
    /// Write the report as JSON to a file; `-` prints it instead of the table
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Plot the distributions of latencies, and throughput over time
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,
    /// Write the times of every request, one line of JSON each
    #[arg(long, value_name = "FILE.jsonl")]
    timeline: Option<PathBuf>,
}

/// Fields of a JSON object.
#[derive(Debug, Clone)]
struct Object(Map<String, Value>);

fn object(s: &str) -> Result<Object, String> {
    serde_json::from_str(s).map(Object).map_err(|e| format!("not a JSON object: {e}"))
}

fn ratio(s: &str) -> Result<f64, String> {
    match s.parse::<f64>() {
        Ok(r) if (0.0..1.0).contains(&r) => Ok(r),
        _ => Err("must be a number from 0 to below 1".to_owned()),
    }
}

pub(super) fn url(s: &str) -> Result<String, String> {
    match s.parse::<reqwest::Url>() {
        Ok(url) if matches!(url.scheme(), "http" | "https") => Ok(s.to_owned()),
        Ok(url) => Err(format!("`{}` is neither http nor https", url.scheme())),
        Err(e) => Err(format!("{e}: write http://127.0.0.1:8000")),
    }
}

fn path(s: &str) -> Result<String, String> {
    if s.starts_with('/') { Ok(s.to_owned()) } else { Err("must begin with a /".to_owned()) }
}

/// Runs the command.
///
/// # Errors
/// A server that does not respond, a dataset that cannot be read, a report that cannot be written.
pub fn run(args: &ServeBenchArgs, context: &Context) -> anyhow::Result<()> {
    // One thread: its processor time is easily measured, and the other cores are left to the server.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(measure(args, context))
}

async fn measure(args: &ServeBenchArgs, context: &Context) -> anyhow::Result<()> {
    let (requests, warmups) = args.requests()?;
    let load = args.load(&requests);
    let timeout = Duration::from_secs_f64(args.timeout.min(LONGEST_TIMEOUT));
    let mut client = Client::new(&args.url, args.endpoint, args.api_key.clone(), timeout)?;
    let model = match &args.model {
        Some(model) => model.clone(),
        None => client.model().await?,
    };
    let form = Form {
        endpoint: args.endpoint,
        model: model.clone(),
        temperature: args.temperature,
        ignore_eos: args.ignore_eos.unwrap_or(args.synthetic()),
        extra: args.extra_body.0.clone(),
    };
    let bodies =
        requests.iter().map(|request| form.body(request)).collect::<Result<Vec<_>, _>>()?;
    for request in &warmups {
        let record = client.send(0, form.body(request)?, 0.0).await;
        if let Some(failure) = record.failure {
            bail!("{}: {failure}", client.url());
        }
    }
    context.say(format_args!("sending {} to {}", count(bodies.len(), "request"), client.url()));
    let url = client.url().to_owned();
    client.begin();
    let client = Arc::new(client);
    let before = DraftTotals::of(&client, args.speculation).await?;
    let (driven, cpu) = watched(client.clone(), &bodies, &load, args, context).await?;
    let speculation = SpeculationReport::since(before, &client).await;
    let bounds = args.goodput;
    let subject = Subject { url: &url, model: &model, load: &load, bounds, cpu, speculation };
    let report = Report::new(&subject, &driven);
    args.print(&report, &driven)?;
    if driven.interrupted > 0 {
        bail!("interrupted: {} did not finish", count(driven.interrupted, "request"));
    }
    match report.first_error() {
        Some(why) if !report.has_responses() => bail!("no request succeeded: {why}"),
        _ => Ok(()),
    }
}

/// Runs the load; also returns the processor time of the client in seconds.
async fn watched(
    client: Arc<Client>,
    bodies: &[Bytes],
    load: &Load,
    args: &ServeBenchArgs,
    context: &Context,
) -> anyhow::Result<(Driven, Option<f64>)> {
    let progress = Progress::start(bodies.len(), context);
    let before = thread_seconds();
    let driven = drive(client, bodies, load, args.probe.as_deref(), &progress).await?;
    let cpu = thread_seconds().zip(before).map(|(after, before)| after - before);
    Ok((driven, cpu))
}

/// Processor time of this thread in seconds; `None` where the system does not report it.
fn thread_seconds() -> Option<f64> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    let nanos: u64 = text.split_whitespace().next()?.parse().ok()?;
    Some(nanos as f64 / 1e9)
}

impl ServeBenchArgs {
    fn synthetic(&self) -> bool {
        self.dataset.as_os_str() == "synthetic"
    }

    /// The requests, and those to warm up with.
    fn requests(&self) -> Result<(Vec<BenchRequest>, Vec<BenchRequest>), CliError> {
        if !self.synthetic() {
            let all = dataset::read(&self.dataset, self.output_len)?;
            let wanted = self.num_prompts.unwrap_or(all.len());
            let warmups = dataset::repeat(&all, self.warmup);
            return Ok((dataset::repeat(&all, wanted), warmups));
        }
        let format = match (self.format, self.endpoint) {
            (Some(format), _) => format,
            (None, Endpoint::Completions) => Format::Ids,
            (None, Endpoint::Chat) => Format::Text,
        };
        let shape = Shape {
            prefix: self.shared_prefix,
            input: self.input_len,
            output: self.output_len,
            ratio: self.range_ratio,
            ids: self.token_ids,
        };
        let draw = |n, seed| shape.draw(n, format, self.endpoint, seed);
        // With another seed, so that neither the prompts nor the shared prefix are cached before the measurement.
        let warmups = draw(self.warmup, !self.seed);
        Ok((draw(self.num_prompts.unwrap_or(REQUESTS), self.seed), warmups))
    }

    fn load(&self, requests: &[BenchRequest]) -> Load {
        if let Some(limit) = self.concurrency {
            return Load::Closed(limit);
        }
        if let Some(rate) = self.rate {
            return Load::Open(moments(requests.len(), rate, self.burstiness, self.seed));
        }
        let own: Option<Vec<f64>> = requests.iter().map(|request| request.arrival).collect();
        Load::Open(own.unwrap_or_else(|| vec![0.0; requests.len()]))
    }

    fn print(&self, report: &Report, driven: &Driven) -> anyhow::Result<()> {
        if let Some(path) = &self.timeline {
            timeline::write(path, &driven.records)?;
        }
        if let Some(path) = &self.plot {
            plot::write(path, report, &driven.records)?;
        }
        out::report(report, self.json.as_deref())
    }
}
