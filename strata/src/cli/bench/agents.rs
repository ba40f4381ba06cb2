//! `strata bench agents`: jobs of agents against a server.
//!
//! A closed loop in each job: a turn is sent when the one before has been answered and its tool has run. Jobs arrive at
//! random however fast the server is. What decides how long a job takes is whether the server still has the KV cache of
//! the job's last turn when the next one comes: the requests say which job they are a step of.

mod conversation;
mod drive;
mod jobs;
mod pins;
mod report;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::bail;

use super::serve::LONGEST_TIMEOUT;
use super::serve::client::Client;
use super::serve::dataset::Endpoint;
use super::span::Span;
use super::speculation::{DraftTotals, SpeculationReport};
use super::{at_least_one, positive, serve};
use crate::cli::context::Context;
use crate::cli::out;
use conversation::Form;
use drive::{Run, drive};
use jobs::AgentJob;
use report::{Report, Subject};
use server::words::count;

/// Default number of jobs.
const JOBS: usize = 20;

/// Measure how long jobs of agents take: turns that grow, and tools between them
///
/// Each job is a conversation of several turns. A turn's prompt is the whole conversation so far; behind its response a
/// tool runs, which is a pause here, and then the next turn is sent. Job seconds count from a job's arrival to its last
/// response, tools included. Every request has the fields `job_id` and `is_last_step`.
#[derive(Debug, clap::Args)]
pub struct AgentsBenchArgs {
    /// URL of the server, such as http://127.0.0.1:8000
    #[arg(long, visible_alias = "url", value_name = "URL", value_parser = serve::url)]
    base_url: String,
    /// Number of jobs [default: 20, or all of the file]
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    jobs: Option<usize>,
    /// Jobs per second, arriving as a Poisson process [default: all at once, or as the file says]
    #[arg(long, visible_alias = "rate", value_name = "R", value_parser = positive)]
    request_rate: Option<f64>,
    /// Jobs to run, one per line: {"job", "arrival", "turns": [{"prompt_tokens", "output_tokens", "tool",
    /// "tool_seconds"}, ..]}, as `strata simulate --agents` reads them; or a trace of `aiperf synthesize agentic-code`
    /// [default: a coding agent of eight turns]
    #[arg(long, value_name = "FILE.jsonl")]
    agents: Option<PathBuf>,
    /// Endpoint. With completions, prompts are token ids, and have exactly the requested length
    #[arg(long, value_name = "ENDPOINT", default_value = "chat")]
    endpoint: Endpoint,
    /// The model's tokenizer (a directory, a tokenizer.json or a .gguf), by which text of chats is measured [default:
    /// about a token per word; the server's count corrects the next turn]
    #[arg(long, value_name = "PATH")]
    tokenizer: Option<PathBuf>,
    /// Range of the token ids of prompts of completions, from A to B
    #[arg(long, value_name = "A,B", default_value = "1000,9999")]
    token_ids: Span,
    /// Make each output begin with a ```bash block that runs the turn's tool, by a guide (`structured_outputs`), so
    /// that the server knows the tool that runs meanwhile
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_value_t = true, default_missing_value = "true")]
    #[arg(action = clap::ArgAction::Set)]
    write_calls: bool,
    /// Model to request [default: the first one that the server lists]
    #[arg(long, value_name = "NAME")]
    model: Option<String>,
    /// API key of the server
    #[arg(long, value_name = "KEY", env = "OPENAI_API_KEY", hide_env_values = true)]
    api_key: Option<String>,
    /// Seed of arrivals, texts, lengths of outputs and times of tools. A repeated run with the same seed finds its
    /// prompts in the server's prefix cache
    #[arg(long, value_name = "SEED", default_value_t = 0)]
    seed: u64,
    /// Time after which a request is abandoned
    #[arg(long, value_name = "SECONDS", value_parser = positive, default_value_t = 600.0)]
    timeout: f64,
    /// Read /metrics every 0.3 s while tools run, and report the leases and their blocks. The counts are of the whole
    /// server: run one job at a time to see those of a job
    #[arg(long)]
    verify_pins: bool,
    /// Read /metrics before and after, and report how often drafts of the server were accepted: acceptance rate and
    /// mean acceptance length. The counts are of the whole server
    #[arg(long)]
    speculation: bool,
    /// Write the report as JSON to a file; `-` prints it instead of the table
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
}

/// Runs the command.
///
/// # Errors
/// A server that does not respond, a file of jobs that cannot be read, a report that cannot be written.
pub fn run(args: &AgentsBenchArgs, context: &Context) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(measure(args, context))
}

async fn measure(args: &AgentsBenchArgs, context: &Context) -> anyhow::Result<()> {
    let jobs = args.jobs()?;
    let tokenizer = args.tokenizer.as_deref().map(l2_model::open_tokenizer).transpose()?;
    let timeout = Duration::from_secs_f64(args.timeout.min(LONGEST_TIMEOUT));
    let mut client = Client::new(&args.base_url, args.endpoint, args.api_key.clone(), timeout)?;
    let model = match &args.model {
        Some(model) => model.clone(),
        None => client.model().await?,
    };
    if args.verify_pins {
        let text = client.text("/metrics").await;
        let text = text.map_err(|why| anyhow::anyhow!("--verify-pins reads /metrics: {why}"))?;
        if pins::read(&text).is_none() {
            bail!(
                "--verify-pins: /metrics has no strata:leases and strata:kv_blocks: is it a Strata server?"
            );
        }
    }
    let number = jobs.len();
    context.say(format_args!("running {} on {}", count(number, "job"), client.url()));
    let url = client.url().to_owned();
    client.begin();
    let form = Form {
        endpoint: args.endpoint,
        model: model.clone(),
        tokenizer,
        ids: args.token_ids,
        write_calls: args.write_calls,
    };
    let before = DraftTotals::of(&client, args.speculation).await?;
    let run = Run { client, form, seed: args.seed, verify_pins: args.verify_pins };
    let run = Arc::new(run);
    let records = drive(run.clone(), jobs).await?;
    let speculation = SpeculationReport::since(before, &run.client).await;
    let subject =
        Subject { url, model_id: model, request_rate: args.request_rate, seed: args.seed, number };
    let report = Report::new(subject, records, speculation);
    out::report(&report, args.output.as_deref())?;
    if report.interrupted() > 0 {
        bail!("interrupted: {} did not finish", count(report.interrupted(), "job"));
    }
    match report.first_error() {
        Some(why) if !report.has_responses() => bail!("no request succeeded: {why}"),
        Some(why) if report.completed() == 0 => bail!("no job finished: {why}"),
        _ => Ok(()),
    }
}

impl AgentsBenchArgs {
    fn jobs(&self) -> anyhow::Result<Vec<AgentJob>> {
        let mut jobs = match &self.agents {
            None => jobs::draw(self.jobs.unwrap_or(JOBS), self.seed),
            Some(file) => {
                let mut jobs = jobs::read(file)?;
                jobs.truncate(self.jobs.unwrap_or(usize::MAX));
                jobs
            }
        };
        if let Some(rate) = self.request_rate {
            let moments = serve::arrivals::moments(jobs.len(), rate, 1.0, self.seed);
            for (job, arrival) in jobs.iter_mut().zip(moments) {
                job.arrival = arrival;
            }
        }
        Ok(jobs)
    }
}
