//! `strata generate --prompts`: runs the prompts of a file together, and prints the responses in their order.

mod line;

use std::sync::mpsc;
use std::time::{Duration, Instant};

use l4_sampler::guide::GuideSpec;
use l4_sampler::stop::StopRules;
use l4_sampler::{LogprobsOf, LogprobsRequest, SamplingParams};
use l5_scheduler::engine::ResponseTimes;
use l5_scheduler::generate::rank;
use l5_scheduler::{
    DraftCounts, EngineHandle, EngineRequest, FinishReason, RequestAdapter, ResponseStream,
};
use serde_json::Value;

use super::context::Context;
use super::error::CliError;
use super::generate::{GenerateArgs, encode};
use super::load::Loaded;
use super::out::Out;
use super::response::{EngineChoice, EngineResponse, ResponseLine};
use super::serving::{Demand, Parts, Serving};
use line::{Line, Text};
use server::words::count;

/// Options of the generation for one prompt.
#[derive(Debug, Clone)]
pub struct PromptOptions {
    /// Sampling parameters.
    pub params: SamplingParams,
    /// Rules by which choices end.
    pub stop: StopRules,
    /// Seed of all random numbers, if it is given.
    pub seed: Option<u64>,
    /// Number of choices to print.
    pub n: usize,
    /// Number of choices to generate, if it is given.
    pub best_of: Option<usize>,
    /// Guide of the output.
    pub guide: Option<GuideSpec>,
    /// Priority: lower is more urgent.
    pub priority: i64,
    /// Salt of the prefix cache.
    pub cache_salt: Option<String>,
}

/// A prompt whose requests are ready to be submitted.
struct PreparedPrompt {
    id: Value,
    /// File and line, for messages.
    at: String,
    /// One request for each choice to generate.
    requests: Vec<EngineRequest>,
    /// Number of choices to print, of those.
    n: usize,
    /// Whether log probabilities are printed.
    logprobs: bool,
}

/// Runs the command for the prompts of `file`.
///
/// # Errors
/// [`CliError::Usage`] naming line and field, before anything runs; what loading and serving report; at the end,
/// requests that failed.
pub fn run(
    file: &str,
    args: &GenerateArgs,
    defaults: &PromptOptions,
    context: &Context,
) -> anyhow::Result<()> {
    let lines = line::read(file, defaults)?;
    let loaded = Loaded::open(&args.model, &args.runtime, context)?;
    let load = loaded.took;
    let parts = Parts::new(loaded);
    let config = parts.model.decoder.config();
    let adapter = args.adapter.open(&parts.model.rt, config, context)?;
    let prompts: Result<Vec<_>, _> =
        lines.into_iter().map(|line| prepare(file, args, &parts, adapter.as_ref(), line)).collect();
    let prompts = prompts?;
    let longest = |prompt: &PreparedPrompt| {
        let most = |r: &EngineRequest| r.prompt.len().saturating_add(r.stop.max_tokens.max(1));
        prompt.requests.iter().map(most).max().unwrap_or(0)
    };
    let demand = Demand {
        requests: prompts.iter().map(|prompt| prompt.requests.len()).sum(),
        longest: prompts.iter().map(longest).max().unwrap_or(0),
        max_lora_rank: args.adapter.max_rank(),
    };
    let (model, name) = (parts.model, &args.model.model);
    let (scheduler, speculation) = (&args.scheduler, &args.speculation);
    let serving = Serving::start(model, name, scheduler, speculation, &args.kv, demand, context)?;
    let handle = serving.engine.handle();
    for PreparedPrompt { at, requests, .. } in &prompts {
        for request in requests.iter().take(1) {
            handle.check(request).map_err(|why| CliError::Usage(format!("{at}: {why}")))?;
        }
    }
    let (began, num_prompts) = (Instant::now(), prompts.len());
    let counts = generate_all(&serving, prompts, load)?;
    let took = began.elapsed().as_secs_f64();
    let rate = counts.tokens as f64 / took.max(1e-9);
    let Counts { tokens, drafts: DraftCounts { proposed, accepted }, .. } = counts;
    let drafts = match handle.config().num_speculative_tokens {
        0 => String::new(),
        _ => format!(", drafts {accepted} of {proposed} accepted"),
    };
    context.say(format_args!(
        "{}, {} in {took:.2} s ({rate:.1}/s){drafts}",
        count(num_prompts, "prompt"),
        count(tokens, "output token"),
    ));
    serving.finish()?;
    if counts.failed > 0 {
        let (failed, all) = (counts.failed, count(num_prompts, "prompt"));
        anyhow::bail!("{failed} of {all} failed: see `error` in their lines");
    }
    Ok(())
}

/// Makes the requests of a line.
fn prepare(
    file: &str,
    args: &GenerateArgs,
    parts: &Parts,
    adapter: Option<&RequestAdapter>,
    line: Line,
) -> anyhow::Result<PreparedPrompt> {
    let Line { number, id, text, options } = line;
    let at = format!("{file} line {number}");
    let prompt = match text {
        Text::Tokens(tokens) => tokens,
        Text::Prompt(text) => {
            let Some(tokenizer) = &parts.tokenizer else {
                let why =
                    format!("{at}: prompt is text, and this model has no tokenizer: give tokens");
                return Err(CliError::Usage(why).into());
            };
            let encoded = encode(args, tokenizer, &text);
            encoded.map_err(|why| CliError::Usage(format!("{at}: prompt: {why}")))?
        }
    };
    let PromptOptions { mut params, stop, seed, n, best_of, guide, priority, cache_salt } = options;
    let logprobs = params.logprobs.is_some();
    let samples = best_of.unwrap_or(n);
    if samples > n {
        // Choices are ranked by their mean log probability.
        let raw = LogprobsRequest { top: 0, of: LogprobsOf::Raw };
        if params.logprobs.get_or_insert(raw).of != LogprobsOf::Raw {
            let why =
                format!("{at}: best_of ranks by raw log probabilities: logprobs_of must be raw");
            return Err(CliError::Usage(why).into());
        }
    }
    let first = EngineRequest {
        guide: guide.map(Into::into),
        continues: !args.chat,
        priority,
        cache_salt,
        adapter: adapter.cloned(),
        ..EngineRequest::new(prompt, params, stop)
    };
    let first = EngineRequest { seed: seed.unwrap_or(first.seed), ..first };
    let sample = |sample| EngineRequest { sample, ..first.clone() };
    let requests = (0..samples as u32).map(sample).collect();
    Ok(PreparedPrompt { id, at, requests, n, logprobs })
}

/// Counts of a run.
#[derive(Default)]
struct Counts {
    tokens: usize,
    failed: usize,
    drafts: DraftCounts,
}

/// Submits prompts as the queue has room, and prints the responses in order, each as soon as those before it are
/// printed.
fn generate_all(
    serving: &Serving,
    prompts: Vec<PreparedPrompt>,
    load: Duration,
) -> anyhow::Result<Counts> {
    let handle = serving.engine.handle();
    std::thread::scope(|scope| {
        let (sender, submitted) = mpsc::channel();
        scope.spawn(move || submit_all(handle, prompts, &sender));
        let mut counts = Counts::default();
        let mut out = Out::new();
        for (prompt, streams) in submitted {
            let streams = streams?;
            print(serving, &prompt, streams, load, &mut out, &mut counts)?;
            out.text("\n")?;
            out.flush()?;
        }
        Ok(counts)
    })
}

/// A prompt that was submitted, and the streams of its choices.
type Submitted = (PreparedPrompt, anyhow::Result<Vec<ResponseStream>>);

fn submit_all(
    handle: &EngineHandle,
    prompts: Vec<PreparedPrompt>,
    submitted: &mpsc::Sender<Submitted>,
) {
    for prompt in prompts {
        let streams = handle.submit_waiting(prompt.requests.clone());
        let streams = streams.map_err(|why| anyhow::anyhow!("{}: {why}", prompt.at));
        if submitted.send((prompt, streams)).is_err() {
            // The receiver has failed. Dropping the streams aborts their requests.
            return;
        }
    }
}

/// Waits for the choices of a prompt, prints its response, and counts them.
fn print(
    serving: &Serving,
    prompt: &PreparedPrompt,
    streams: Vec<ResponseStream>,
    load: Duration,
    out: &mut Out,
    counts: &mut Counts,
) -> anyhow::Result<()> {
    let mut times: Option<ResponseTimes> = None;
    let speculates = serving.engine.handle().config().num_speculative_tokens > 0;
    let mut drafts = speculates.then(DraftCounts::default);
    let mut choices = Vec::new();
    for mut stream in streams {
        let mut output = stream.rest();
        let end = output.end.take();
        let finish = end.as_ref().map_or(FinishReason::Failed, |end| end.finish);
        if let (Some(sum), Some(end)) = (&mut drafts, &end) {
            *sum += end.drafts;
        }
        choices.push(EngineChoice { output, finish, error: end.and_then(|end| end.error) });
        let own = stream.times();
        times =
            Some(times.map_or(own, |all| ResponseTimes { last: all.last.max(own.last), ..all }));
    }
    let tokens = choices.iter().map(|choice| choice.output.tokens.len()).sum();
    if choices.iter().any(|choice| choice.finish == FinishReason::Failed) {
        counts.failed += 1;
    }
    if choices.len() > prompt.n {
        rank(&mut choices, |EngineChoice { output, finish, .. }| {
            (*finish != FinishReason::Failed).then_some(&output.logprobs)
        });
        choices.truncate(prompt.n);
    }
    let since = |from: Option<Instant>, to: Option<Instant>| match (from, to) {
        (Some(from), Some(to)) => to.saturating_duration_since(from),
        _ => Duration::ZERO,
    };
    let (submitted, first, last) =
        times.map_or((None, None, None), |t| (Some(t.submitted), t.first, t.last));
    out.json(&ResponseLine::new(EngineResponse {
        id: &prompt.id,
        prompt: prompt.requests.first().map_or(&[][..], |request| &request.prompt),
        seed: prompt.requests.first().map_or(0, |request| request.seed),
        choices: &choices,
        completion_tokens: tokens,
        drafts,
        logprobs: prompt.logprobs,
        load,
        prefill: since(submitted, first),
        decode: since(first, last),
        kv: serving.kv(times.map_or(0, |times| times.cached)),
    }))?;
    counts.tokens += tokens;
    counts.drafts += drafts.unwrap_or_default();
    Ok(())
}
