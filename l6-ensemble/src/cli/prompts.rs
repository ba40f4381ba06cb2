//! `strata generate --prompts`: a file of prompts, answered together, told in their order.

mod line;

use std::sync::mpsc;
use std::time::{Duration, Instant};

use l4_sampler::guide::GuideSpec;
use l4_sampler::stop::StopRules;
use l4_sampler::{LogprobsOf, LogprobsRequest, SamplingParams};
use l5_scheduler::engine::AnswerTimes;
use l5_scheduler::{Answer, EngineHandle, EngineRequest, FinishReason};
use serde_json::Value;

use super::answer::{AnswerLine, Served, ServedChoice};
use super::context::Context;
use super::error::CliError;
use super::generate::{GenerateArgs, encode};
use super::load::Loaded;
use super::out::Out;
use super::serving::{Demand, Parts, Serving};
use line::{Line, Text};

/// What is asked of a prompt.
#[derive(Debug, Clone)]
pub struct Wanted {
    /// How tokens are chosen.
    pub params: SamplingParams,
    /// Where answers end.
    pub stop: StopRules,
    /// What random numbers follow from, if that was said.
    pub seed: Option<u64>,
    /// Answers to tell.
    pub n: usize,
    /// Answers to generate, if that was said.
    pub best_of: Option<usize>,
    /// What answers must look like.
    pub guide: Option<GuideSpec>,
    /// How urgent it is.
    pub priority: i64,
    /// Keeps blocks apart.
    pub cache_salt: Option<String>,
}

/// A prompt that is ready to be asked.
struct Asked {
    id: Value,
    /// Of the file, for messages.
    at: String,
    /// One for each answer to generate.
    requests: Vec<EngineRequest>,
    /// Answers to tell, of those.
    n: usize,
    /// Whether log probabilities are told.
    tells: bool,
}

/// Runs the command for the prompts of `file`.
///
/// # Errors
/// [`CliError::Usage`] naming line and field, before anything runs; what loading and serving report; at the end, requests
/// that failed.
pub fn run(
    file: &str,
    args: &GenerateArgs,
    defaults: &Wanted,
    context: &Context,
) -> anyhow::Result<()> {
    let lines = line::read(file, defaults)?;
    let loaded = Loaded::open(&args.model, &args.runtime, context)?;
    let load = loaded.took;
    let parts = Parts::new(loaded);
    let asked: Result<Vec<_>, _> =
        lines.into_iter().map(|line| ask(file, args, &parts, line)).collect();
    let asked = asked?;
    let longest = |asked: &Asked| {
        let most = |r: &EngineRequest| r.prompt.len().saturating_add(r.stop.max_tokens.max(1));
        asked.requests.iter().map(most).max().unwrap_or(0)
    };
    let demand = Demand {
        requests: asked.iter().map(|asked| asked.requests.len()).sum(),
        longest: asked.iter().map(longest).max().unwrap_or(0),
    };
    let (model, name) = (parts.model, &args.model.model);
    let serving = Serving::start(model, name, &args.scheduler, &args.kv, demand, context)?;
    let handle = serving.engine.handle();
    for Asked { at, requests, .. } in &asked {
        for request in requests.iter().take(1) {
            handle.check(request).map_err(|why| CliError::Usage(format!("{at}: {why}")))?;
        }
    }
    let (began, prompts) = (Instant::now(), asked.len());
    let counts = answer_all(&serving, asked, load)?;
    let took = began.elapsed().as_secs_f64();
    let rate = counts.tokens as f64 / took.max(1e-9);
    let tokens = counts.tokens;
    context
        .say(format_args!("{prompts} prompts, {tokens} new tokens in {took:.2} s ({rate:.1}/s)"));
    serving.finish()?;
    if counts.failed > 0 {
        let failed = counts.failed;
        anyhow::bail!("{failed} of {prompts} prompts failed: see `error` in their lines");
    }
    Ok(())
}

/// From a line to requests.
fn ask(file: &str, args: &GenerateArgs, parts: &Parts, line: Line) -> anyhow::Result<Asked> {
    let Line { number, id, text, wanted } = line;
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
    let Wanted { mut params, stop, seed, n, best_of, guide, priority, cache_salt } = wanted;
    let tells = params.logprobs.is_some();
    let samples = best_of.unwrap_or(n);
    if samples > n {
        // The best are those whose tokens the model thinks likeliest.
        let raw = LogprobsRequest { top: 0, of: LogprobsOf::Raw };
        if params.logprobs.get_or_insert(raw).of != LogprobsOf::Raw {
            let why = format!("{at}: best_of ranks by raw log probabilities: ask for those");
            return Err(CliError::Usage(why).into());
        }
    }
    let first = EngineRequest {
        guide: guide.map(Into::into),
        continues: !args.chat,
        priority,
        cache_salt,
        ..EngineRequest::new(prompt, params, stop)
    };
    let first = EngineRequest { seed: seed.unwrap_or(first.seed), ..first };
    let sample = |sample| EngineRequest { sample, ..first.clone() };
    let requests = (0..samples as u32).map(sample).collect();
    Ok(Asked { id, at, requests, n, tells })
}

/// What came of all.
#[derive(Default)]
struct Counts {
    tokens: usize,
    failed: usize,
}

/// Hands in as many as may wait, and tells answers in the order of their prompts, each as soon as its turn comes.
fn answer_all(serving: &Serving, asked: Vec<Asked>, load: Duration) -> anyhow::Result<Counts> {
    let handle = serving.engine.handle();
    std::thread::scope(|scope| {
        let (sender, begun) = mpsc::channel();
        scope.spawn(move || hand_in(handle, asked, &sender));
        let mut counts = Counts::default();
        let mut out = Out::new();
        for (asked, answers) in begun {
            let answers = answers?;
            counts.tokens += tell(serving, &asked, answers, load, &mut out, &mut counts.failed)?;
            out.text("\n")?;
            out.flush()?;
        }
        Ok(counts)
    })
}

/// A prompt that was handed in, and its answers to be.
type Begun = (Asked, anyhow::Result<Vec<Answer>>);

fn hand_in(handle: &EngineHandle, asked: Vec<Asked>, begun: &mpsc::Sender<Begun>) {
    for asked in asked {
        let answers = handle.submit_waiting(asked.requests.clone());
        let answers = answers.map_err(|why| anyhow::anyhow!("{}: {why}", asked.at));
        if begun.send((asked, answers)).is_err() {
            // Nobody listens any more. What was handed in is aborted with its answers.
            return;
        }
    }
}

/// Waits for the answers of a prompt and prints its object. Returns how many tokens they have.
fn tell(
    serving: &Serving,
    asked: &Asked,
    answers: Vec<Answer>,
    load: Duration,
    out: &mut Out,
    failed: &mut usize,
) -> anyhow::Result<usize> {
    let mut times: Option<AnswerTimes> = None;
    let mut choices = Vec::new();
    for mut answer in answers {
        let mut piece = answer.rest();
        let end = piece.end.take();
        let finish = end.as_ref().map_or(FinishReason::Failed, |end| end.finish);
        choices.push(ServedChoice { piece, finish, error: end.and_then(|end| end.error) });
        let own = answer.times();
        times = Some(times.map_or(own, |all| AnswerTimes { last: all.last.max(own.last), ..all }));
    }
    let tokens = choices.iter().map(|choice| choice.piece.tokens.len()).sum();
    if choices.iter().any(|choice| choice.finish == FinishReason::Failed) {
        *failed += 1;
    }
    if choices.len() > asked.n {
        // A stable sort: of equally good answers the first comes first.
        choices.sort_by(|a, b| mean(b).total_cmp(&mean(a)));
        choices.truncate(asked.n);
    }
    let since = |from: Option<Instant>, to: Option<Instant>| match (from, to) {
        (Some(from), Some(to)) => to.saturating_duration_since(from),
        _ => Duration::ZERO,
    };
    let (submitted, first, last) =
        times.map_or((None, None, None), |t| (Some(t.submitted), t.first, t.last));
    out.json(&AnswerLine::new(Served {
        id: &asked.id,
        prompt: asked.requests.first().map_or(&[][..], |request| &request.prompt),
        seed: asked.requests.first().map_or(0, |request| request.seed),
        choices: &choices,
        logprobs: asked.tells,
        load,
        prefill: since(submitted, first),
        decode: since(first, last),
        kv: serving.kv(times.map_or(0, |times| times.cached)),
    }))?;
    Ok(tokens)
}

/// The mean log probability of an answer's tokens, as the model saw them.
fn mean(choice: &ServedChoice) -> f64 {
    let told = &choice.piece.logprobs;
    let sum: f64 = told.iter().map(|token| f64::from(token.logprob)).sum();
    sum / told.len().max(1) as f64
}
