//! `strata bench serve`: a server, measured from outside.
//!
//! Any server of OpenAI's API will do, so that Strata and others can be measured by one client. Two loads there are. An
//! **open loop** sends each request at its moment, as users do who know nothing of each other; what a request takes counts
//! from that moment, so that a server (or a client) that falls behind cannot hide it. (Leaving that wait out is what Gil
//! Tene called coordinated omission.) A **closed loop** keeps a number of requests under way, which finds the most that a
//! server can do.

mod arrivals;
mod client;
mod dataset;
mod drive;
mod failure;
mod goodput;
mod measure;
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
use super::{at_least_one, positive};
use crate::cli::context::Context;
use crate::cli::error::CliError;
use crate::cli::out;
use arrivals::{Load, moments};
use client::Client;
use dataset::{Ask, Endpoint, Form, Format, Shape};
use drive::{Driven, drive};
use goodput::Bounds;
use progress::Progress;
use report::{Report, Subject};

/// Requests of a run where nobody says how many, and no file has its own.
const REQUESTS: usize = 100;
/// As good as none: clocks cannot tell moments that are ages away.
const LONGEST_TIMEOUT: f64 = 1e7;

/// Measure a server of OpenAI's API: throughput, latencies, goodput
///
/// Latencies are seen from the client and have the meanings of `vllm bench serve`: TTFT to the first chunk that brings
/// tokens, ITL between such chunks, TPOT the mean time of a token after the first, E2E to the last chunk. With --rate they
/// count from the moment at which a request was due.
#[derive(Debug, clap::Args)]
pub struct ServeBenchArgs {
    /// The server, such as http://127.0.0.1:8000
    #[arg(long, value_name = "URL", value_parser = url)]
    url: String,
    /// Requests a second, at random moments, however many are under way [default: all at once]
    #[arg(long, value_name = "R", value_parser = positive, conflicts_with = "concurrency")]
    rate: Option<f64>,
    /// How evenly they come: 1 as a Poisson process, less in bursts, more evenly
    #[arg(long, value_name = "B", value_parser = positive, default_value_t = 1.0, requires = "rate")]
    burstiness: f64,
    /// Keep so many requests under way instead: each that ends lets the next one go
    #[arg(long, value_name = "C", value_parser = at_least_one)]
    concurrency: Option<usize>,
    /// Requests [default: 100, or as many as the file has; a file with fewer is begun again]
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    num_prompts: Option<usize>,
    /// `synthetic`, or a file with a request a line: {"prompt" or "tokens" or "messages", "max_tokens", "arrival"}. If all
    /// have an `arrival` (in seconds), they come at these moments, unless --rate or --concurrency says otherwise
    #[arg(long, value_name = "synthetic|FILE.jsonl", default_value = "synthetic")]
    dataset: PathBuf,
    /// Tokens of a synthetic prompt
    #[arg(long, value_name = "N", value_parser = at_least_one, default_value_t = 128)]
    input_len: usize,
    /// Tokens of an answer
    #[arg(long, value_name = "N", value_parser = at_least_one, default_value_t = 64)]
    output_len: usize,
    /// Draw both lengths of synthetic requests from length * (1 - R) to length * (1 + R)
    #[arg(long, value_name = "R", value_parser = ratio, default_value_t = 0.0)]
    range_ratio: f64,
    /// Tokens that all synthetic prompts begin with, before their own; in a chat they are the system message
    #[arg(long, value_name = "N", default_value_t = 0)]
    shared_prefix: usize,
    /// Synthetic prompts as token ids or as text [default: ids for completions, text for chat]
    #[arg(long, value_name = "FORMAT")]
    format: Option<Format>,
    /// Token ids that synthetic prompts are made of, from A to B
    #[arg(long, value_name = "A,B", default_value = "1000,9999")]
    token_ids: Span,
    /// Which endpoint to ask
    #[arg(long, value_name = "ENDPOINT", default_value = "completions")]
    endpoint: Endpoint,
    /// The model to ask for [default: the first one that the server names]
    #[arg(long, value_name = "NAME")]
    model: Option<String>,
    /// The key that the server wants
    #[arg(long, value_name = "KEY", env = "OPENAI_API_KEY", hide_env_values = true)]
    api_key: Option<String>,
    /// Divide logits by this; 0 takes the likeliest token
    #[arg(long, value_name = "T", default_value_t = 0.0)]
    temperature: f64,
    /// Go on past the model's end tokens, so that answers are as long as they may be [default: true for synthetic
    /// requests]. OpenAI's own servers do not know it
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
    ignore_eos: Option<bool>,
    /// More fields of every request, as a JSON object; null leaves one out
    #[arg(long, value_name = "JSON", value_parser = object, default_value = "{}")]
    extra_body: Object,
    /// Also report how many requests a second kept all of these bounds: ttft, itl (the longest time between two chunks of
    /// the response), tpot (the mean), e2e. Units are ms and s; a number without a unit counts milliseconds, as in vLLM's
    /// client (seconds in `strata simulate`)
    #[arg(long, value_name = "ttft:500ms,itl:50ms,..")]
    goodput: Option<Bounds>,
    /// Meanwhile, GET such a path every 50 ms and tell what that takes: /health
    #[arg(long, value_name = "PATH", value_parser = path)]
    probe: Option<String>,
    /// What lengths, tokens and moments follow from. The same ones again would find their prompts in the server's cache
    #[arg(long, value_name = "SEED", default_value_t = 0)]
    seed: u64,
    /// Requests before the measurement, one after the other, that do not count
    #[arg(long, value_name = "N", default_value_t = 1)]
    warmup: usize,
    /// Give a request up after so long
    #[arg(long, value_name = "SECONDS", value_parser = positive, default_value_t = 600.0)]
    timeout: f64,
    /// Write the report as JSON to a file; `-` prints it instead of the table
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Draw distributions of latencies and throughput over time
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,
    /// Write what was seen of each request, a line of JSON for each
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

fn url(s: &str) -> Result<String, String> {
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
/// A server that does not answer, a dataset that cannot be read, a report that cannot be written.
pub fn run(args: &ServeBenchArgs, context: &Context) -> anyhow::Result<()> {
    // One thread: what it takes of a processor is easily told, and it leaves the others to the server.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(measure(args, context))
}

async fn measure(args: &ServeBenchArgs, context: &Context) -> anyhow::Result<()> {
    let (asks, warmups) = args.asks()?;
    let load = args.load(&asks);
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
    let bodies = asks.iter().map(|ask| form.body(ask)).collect::<Result<Vec<_>, _>>()?;
    for ask in &warmups {
        let record = client.ask(0, form.body(ask)?, 0.0).await;
        if let Some(failure) = record.failure {
            bail!("{}: {failure}", client.url());
        }
    }
    context.say(format_args!("sending {} requests to {}", bodies.len(), client.url()));
    let url = client.url().to_owned();
    client.begin();
    let (driven, cpu) = watched(client, &bodies, &load, args, context).await?;
    let subject = Subject { url: &url, model: &model, load: &load, bounds: args.goodput, cpu };
    let report = Report::new(&subject, &driven);
    args.tell(&report, &driven)?;
    if driven.interrupted > 0 {
        bail!("interrupted: {} requests have no end", driven.interrupted);
    }
    match report.first_error() {
        Some(why) if !report.answered() => bail!("no request was answered: {why}"),
        _ => Ok(()),
    }
}

/// The run, and the seconds of a processor that it took this side.
async fn watched(
    client: Client,
    bodies: &[Bytes],
    load: &Load,
    args: &ServeBenchArgs,
    context: &Context,
) -> anyhow::Result<(Driven, Option<f64>)> {
    let progress = Progress::start(bodies.len(), context);
    let before = thread_seconds();
    let driven = drive(Arc::new(client), bodies, load, args.probe.as_deref(), &progress).await?;
    let cpu = thread_seconds().zip(before).map(|(after, before)| after - before);
    Ok((driven, cpu))
}

/// Seconds that a processor worked for this thread, where Linux tells.
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
    fn asks(&self) -> Result<(Vec<Ask>, Vec<Ask>), CliError> {
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
        // Of another seed, so that no prompt is in the cache before its time, and neither is the shared beginning.
        let warmups = draw(self.warmup, !self.seed);
        Ok((draw(self.num_prompts.unwrap_or(REQUESTS), self.seed), warmups))
    }

    fn load(&self, asks: &[Ask]) -> Load {
        if let Some(limit) = self.concurrency {
            return Load::Closed(limit);
        }
        if let Some(rate) = self.rate {
            return Load::Open(moments(asks.len(), rate, self.burstiness, self.seed));
        }
        let own: Option<Vec<f64>> = asks.iter().map(|ask| ask.arrival).collect();
        Load::Open(own.unwrap_or_else(|| vec![0.0; asks.len()]))
    }

    fn tell(&self, report: &Report, driven: &Driven) -> anyhow::Result<()> {
        if let Some(path) = &self.timeline {
            timeline::write(path, &driven.records)?;
        }
        if let Some(path) = &self.plot {
            plot::write(path, report, &driven.records)?;
        }
        match &self.json {
            Some(path) if path.as_os_str() == "-" => return Ok(out::json_line(report)?),
            Some(path) => {
                let text = format!("{}\n", serde_json::to_string(report)?);
                let written = std::fs::write(path, text);
                written.map_err(|reason| CliError::Output { path: path.clone(), reason })?;
            }
            None => {}
        }
        Ok(out::text(&report.to_string())?)
    }
}
