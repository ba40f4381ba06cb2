//! `strata generate`: continue a prompt, once or several times.

use std::path::PathBuf;
use std::str::FromStr;

use anyhow::Context as _;
use l2_model::SequenceState;
use l2_model::chat_template::Message;
use l2_model::generate::PREFILL_CHUNK;
use l4_sampler::generate::{Generator, Request};
use l4_sampler::guide::GuideSpec;
use l4_sampler::stop::StopRules;
use l4_sampler::{LogprobsOf, LogprobsRequest, SamplingParams};

use super::answer::{Answer, summary};
use super::args::{ModelArgs, RuntimeArgs, TokenIds};
use super::context::{Context, warn};
use super::error::CliError;
use super::guides::{GuideArgs, guide};
use super::kv::{Kv, KvArgs, StateKind};
use super::load::Loaded;
use super::out::{self, Out};
use super::prompt;
use super::prompts::{self, Wanted};
use super::recording::Recording;
use super::sampling::SamplingArgs;
use super::serving::SchedulerArgs;

/// Continue a prompt
///
/// The text streams to stdout as it comes. Unless --temperature says otherwise the likeliest token is taken at every
/// step, so the same prompt gives the same text.
#[derive(Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("objects").args(["json", "prompts"]).multiple(true))]
pub struct GenerateArgs {
    /// The text to continue; `-` reads it from stdin, to the last byte (`printf`, not `echo`)
    #[arg(value_name = "PROMPT", required_unless_present_any = ["tokens", "prompts"])]
    prompt: Option<String>,
    #[command(flatten)]
    pub(super) model: ModelArgs,
    /// The most new tokens
    #[arg(short = 'n', long, value_name = "N", default_value_t = 128)]
    max_tokens: usize,
    /// Ask instead of continue: put PROMPT into the model's chat format, as the user's message
    #[arg(long)]
    pub(super) chat: bool,
    /// The system message of the chat
    #[arg(long, value_name = "TEXT", requires = "chat")]
    system: Option<String>,
    /// The prompt as token ids, as they are: 1,2,3. No BOS is added, no tokenizer is needed
    #[arg(
        long,
        value_name = "IDS",
        conflicts_with_all = ["prompt", "chat"],
        allow_hyphen_values = true
    )]
    tokens: Option<TokenIds>,
    /// Answer many prompts at once: lines of JSON, {"id", "prompt" or "tokens", "sampling": {..}}; `-` reads stdin. What a
    /// line does not say of sampling, these options say for all. Prints --json's object and the id for each, in the order
    /// of the lines
    #[arg(long, value_name = "FILE", conflicts_with_all = ["prompt", "tokens", "trace_blocks"])]
    prompts: Option<String>,
    /// Print one JSON object when done, instead of streaming text
    #[arg(long)]
    json: bool,
    /// Record what happens to the blocks, for `strata trace blocks`
    #[arg(long, value_name = "FILE")]
    trace_blocks: Option<PathBuf>,
    #[command(flatten)]
    pub(super) kv: KvArgs,
    #[command(flatten)]
    pub(super) runtime: RuntimeArgs,
    #[command(flatten)]
    pub(super) scheduler: SchedulerArgs,
    // Groups with a heading of their own in the help come last: what follows them would stand under it.
    #[command(flatten)]
    sampling: SamplingArgs,
    #[command(flatten)]
    answers: AnswersArgs,
    #[command(flatten)]
    guide: GuideArgs,
}

/// How many answers, where they end, and what is told about them.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Answers")]
struct AnswersArgs {
    /// Answers to the one prompt, computed together. They are printed when all are done, one after the other, each ended by
    /// a newline
    #[arg(long, value_name = "N", allow_negative_numbers = true, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1024))]
    n: u16,
    /// Generate so many answers and keep the --n whose tokens the model thinks likeliest, on average [default: --n]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = clap::value_parser!(u16).range(1..=1024))]
    best_of: Option<u16>,
    /// End an answer where this text comes up, before it; may be given several times
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    stop: Vec<String>,
    /// Let an answer end behind the --stop text that ended it
    #[arg(long, requires = "stop")]
    include_stop_str: bool,
    /// Do not let an answer end before it has so many tokens
    #[arg(long, value_name = "N", allow_negative_numbers = true, default_value_t = 0)]
    min_tokens: usize,
    /// Go on past tokens that end an answer
    #[arg(long)]
    ignore_eos: bool,
    /// Tell the log probability of every token, and the N likeliest in its place (needs --json)
    #[arg(long, value_name = "N", allow_negative_numbers = true, requires = "objects")]
    logprobs: Option<usize>,
    /// Whose log probabilities: raw (the model's) or processed (after penalties, temperature and filters)
    #[arg(long, value_name = "WHICH", default_value = "raw", requires = "logprobs")]
    logprobs_of: Which,
}

/// As `--logprobs-of` names them.
#[derive(Debug, Clone, Copy)]
struct Which(LogprobsOf);

impl FromStr for Which {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        match s {
            "raw" => Ok(Self(LogprobsOf::Raw)),
            "processed" => Ok(Self(LogprobsOf::Processed)),
            _ => Err(format!("there are no `{s}` log probabilities: use raw or processed")),
        }
    }
}

impl AnswersArgs {
    /// Answers to generate.
    ///
    /// # Errors
    /// [`CliError::Usage`] for fewer than are to be printed.
    fn best_of(&self) -> Result<usize, CliError> {
        let best_of = self.best_of.unwrap_or(self.n);
        if best_of < self.n {
            let why = format!("--best-of {best_of} must be at least --n {}", self.n);
            return Err(CliError::Usage(why));
        }
        Ok(best_of.into())
    }

    fn logprobs(&self) -> Option<LogprobsRequest> {
        self.logprobs.map(|top| LogprobsRequest { top, of: self.logprobs_of.0 })
    }
}

/// Runs the command.
///
/// # Errors
/// What loading and generating report; a model without what the prompt or its answers need (tokenizer, chat template).
pub fn run(args: &GenerateArgs, context: &Context) -> anyhow::Result<()> {
    let samples = check(args)?;
    let spec = args.guide.spec()?;
    if let Some(file) = &args.prompts {
        return prompts::run(file, args, &args.wanted(samples, spec), context);
    }
    let text = args.prompt.as_deref().map(prompt::text_of).transpose()?;
    let model = Loaded::open(&args.model, &args.runtime, context)?;
    let config = model.decoder.config();
    let (prompt, tokenizer) = match (&args.tokens, text) {
        (Some(ids), _) => (ids.0.clone(), tokenizer_if_any(&model)),
        (None, Some(text)) => {
            let tokenizer = model.tokenizer?;
            (encode(args, &tokenizer, &text)?, Some(tokenizer))
        }
        (None, None) => {
            return Err(CliError::Usage("give a PROMPT, or --tokens".into()).into());
        }
    };
    let params = args.params();
    let stop = StopRules { eos: model.stop_tokens.clone(), ..args.stop() };
    let guide = spec.map(|spec| guide(&spec, tokenizer.as_ref(), config.vocab, &stop.eos));
    let guide = guide.transpose()?;
    args.sampling.explain(
        &[("--n", args.answers.n > 1), ("--best-of", args.answers.best_of.is_some())],
        context,
    );

    let longest = prompt.len().saturating_add(args.max_tokens);
    let kv = args.kv.plan_sharing(config, &model.rt, samples, longest, prompt.len());
    let kv = kv.with_context(|| {
        format!("{} prompt tokens and up to {} new ones", prompt.len(), args.max_tokens)
    })?;
    kv.explain(&args.kv, context);
    let recording = args.trace_blocks.as_deref().map(Recording::create).transpose()?;
    let state = state(&kv, config, PREFILL_CHUNK.max(samples), recording.as_ref())?;
    let tokenizer = tokenizer.as_ref();
    let mut generator =
        Generator::new(&model.decoder, tokenizer, &model.rt, state, samples, kv.max_len)?;
    let seed = args.sampling.seed();
    let request = Request {
        guide: guide.as_ref(),
        n: args.answers.n.into(),
        best_of: samples,
        seed,
        continues: !args.chat,
        ..Request::new(&prompt, &params, &stop)
    };
    let streams = samples == 1 && !args.json;
    let mut written = Ok(());
    let generation = generator.run(&request, |_, text| {
        if streams && !text.is_empty() {
            written = out::text(text);
        }
        written.is_ok()
    })?;
    written?;
    if let Some(recording) = recording {
        recording.finish()?;
    }

    if args.json {
        let kv = kv.report(generation.work.prompt_cached);
        let answer = Answer::new(&prompt, seed, &generation, params.logprobs, model.took, kv);
        out::json_line(&answer)?;
    } else if streams {
        Out::end_of_text()?;
    } else {
        let mut out = Out::new();
        for choice in &generation.choices {
            out.text(&choice.text)?;
            out.text("\n")?;
        }
        out.finish()?;
    }
    context.say(summary(prompt.len(), &generation));
    Ok(())
}

impl GenerateArgs {
    fn params(&self) -> SamplingParams {
        SamplingParams {
            min_tokens: self.answers.min_tokens,
            logprobs: self.answers.logprobs(),
            ..self.sampling.params()
        }
    }

    fn stop(&self) -> StopRules {
        StopRules {
            ignore_eos: self.answers.ignore_eos,
            strings: self.answers.stop.clone(),
            include_stop_str: self.answers.include_stop_str,
            min_tokens: self.answers.min_tokens,
            max_tokens: self.max_tokens,
            ..StopRules::default()
        }
    }

    /// What is asked of every prompt of a file, unless its line says otherwise.
    fn wanted(&self, best_of: usize, guide: Option<GuideSpec>) -> Wanted {
        Wanted {
            params: self.params(),
            stop: self.stop(),
            seed: self.sampling.given_seed(),
            n: self.answers.n.into(),
            best_of: self.answers.best_of.map(|_| best_of),
            guide,
            priority: 0,
            cache_salt: None,
        }
    }
}

/// Refuses options that make no sense together. Returns how many answers to generate.
fn check(args: &GenerateArgs) -> Result<usize, CliError> {
    if args.trace_blocks.is_some() && args.kv.state != StateKind::Paged {
        let why = "--trace-blocks records blocks, and only --state paged has any";
        return Err(CliError::Usage(why.into()));
    }
    if args.guide.reads_stdin()
        && [&args.prompt, &args.prompts].into_iter().any(|from| from.as_deref() == Some("-"))
    {
        let why = "stdin cannot be both the prompt and what the answer must look like";
        return Err(CliError::Usage(why.into()));
    }
    if args.prompts.is_none() {
        if let Some(flag) = args.scheduler.given() {
            let why = format!("{flag} is for many prompts at once: give them with --prompts");
            return Err(CliError::Usage(why));
        }
    } else if args.kv.state != StateKind::Paged {
        let why = "--prompts shares one pool of blocks, and only --state paged has any";
        return Err(CliError::Usage(why.into()));
    }
    args.answers.best_of()
}

/// The memory of the sequences, recorded if that was asked for.
fn state(
    kv: &Kv,
    config: &l2_model::ModelConfig,
    max_step_tokens: usize,
    recording: Option<&Recording>,
) -> anyhow::Result<Box<dyn SequenceState>> {
    let Some(recording) = recording else { return kv.make(config, max_step_tokens) };
    let mut state = kv.paged(config, max_step_tokens)?;
    state.set_observer(Some(recording.observer()))?;
    Ok(Box::new(state))
}

/// With ids for a prompt the tokenizer only serves to show the answer as text: a broken one is worth a word, and an
/// absent one not even that.
pub(super) fn tokenizer_if_any(model: &Loaded) -> Option<l2_model::tokenizer::Tokenizer> {
    match &model.tokenizer {
        Ok(tokenizer) => Some(tokenizer.clone()),
        Err(l2_model::Error::Tokenizer(l2_model::tokenizer::TokenizerError::Missing {
            ..
        })) => None,
        Err(why) => {
            warn(format_args!("no text, only tokens: {why}"));
            None
        }
    }
}

pub(super) fn encode(
    args: &GenerateArgs,
    tokenizer: &l2_model::tokenizer::Tokenizer,
    text: &str,
) -> anyhow::Result<Vec<u32>> {
    if !args.chat {
        return Ok(prompt::plain(tokenizer, text)?);
    }
    if text.is_empty() {
        return Err(l2_model::Error::EmptyPrompt.into());
    }
    let template = prompt::template(tokenizer, &args.model.model)?;
    let system = args.system.as_deref().map(|s| Message::new("system", s));
    let messages: Vec<_> = system.into_iter().chain([Message::new("user", text)]).collect();
    Ok(prompt::chat(tokenizer, &template, &messages)?)
}
