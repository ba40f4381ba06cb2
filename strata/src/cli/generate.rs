//! `strata generate`: continue a prompt, once or several times.

use std::path::PathBuf;
use std::str::FromStr;

use anyhow::Context as _;
use l2_model::chat_template::Message;
use l4_sampler::guide::GuideSpec;
use l4_sampler::stop::StopRules;
use l4_sampler::{LogprobsOf, LogprobsRequest, SamplingParams};
use l5_scheduler::generate::{GenerateError, GenerateRequest, Generator};
use l5_scheduler::{EngineOptions, EngineRequest, SubmitError};

use super::adapter::AdapterArgs;
use super::args::{ModelArgs, RuntimeArgs, TokenIds};
use super::context::{Context, warn};
use super::error::CliError;
use super::guides::GuideArgs;
use super::kv::{KvArgs, StateKind};
use super::load::Loaded;
use super::options::SpeculationOptions;
use super::out::{self, Out};
use super::prompt;
use super::prompts::{self, PromptOptions};
use super::recording::Recording;
use super::response::{Response, summary};
use super::sampling::SamplingArgs;
use super::serving::{Parts, SchedulerArgs, start_error};

/// Generate a completion of a prompt
///
/// The text streams to stdout as it is generated. Without --temperature the most likely token is taken at every step,
/// so the same prompt gives the same text.
#[derive(Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("objects").args(["json", "prompts"]).multiple(true))]
pub struct GenerateArgs {
    /// Text of the prompt; `-` reads it from stdin, up to the last byte (use `printf`, not `echo`)
    #[arg(value_name = "PROMPT", required_unless_present_any = ["tokens", "prompts"])]
    prompt: Option<String>,
    #[command(flatten)]
    pub(super) model: ModelArgs,
    /// Maximum number of output tokens
    #[arg(short = 'n', long, value_name = "N", default_value_t = 128)]
    max_tokens: usize,
    /// Use PROMPT as the user's message of a chat, in the format of the model's chat template
    #[arg(long)]
    pub(super) chat: bool,
    /// System message of the chat
    #[arg(long, value_name = "TEXT", requires = "chat")]
    system: Option<String>,
    /// Prompt as token ids: 1,2,3. No BOS is added, and no tokenizer is needed: without one the output is
    /// token ids
    #[arg(
        long,
        value_name = "IDS",
        conflicts_with_all = ["prompt", "chat"],
        allow_hyphen_values = true
    )]
    tokens: Option<TokenIds>,
    /// Run many prompts at once, from lines of JSON: {"id", "prompt" or "tokens", "sampling": {..}}; `-` reads stdin.
    /// The options of the command line are the defaults of `sampling`. Prints the object of --json with the id for
    /// each, in the order of the lines
    #[arg(long, value_name = "FILE", conflicts_with_all = ["prompt", "tokens", "trace_blocks"])]
    prompts: Option<String>,
    /// Print one JSON object when done, instead of streaming text
    #[arg(long)]
    json: bool,
    /// Record the operations of the block pool in this file, for `strata trace blocks`
    #[arg(long, value_name = "FILE")]
    trace_blocks: Option<PathBuf>,
    #[command(flatten)]
    pub(super) adapter: AdapterArgs,
    #[command(flatten)]
    pub(super) kv: KvArgs,
    #[command(flatten)]
    pub(super) runtime: RuntimeArgs,
    #[command(flatten)]
    pub(super) speculation: SpeculationOptions,
    #[command(flatten)]
    pub(super) scheduler: SchedulerArgs,
    // Groups with their own heading in the help are last: options after them would appear under it.
    #[command(flatten)]
    sampling: SamplingArgs,
    #[command(flatten)]
    choices: ChoiceArgs,
    #[command(flatten)]
    guide: GuideArgs,
}

/// Number of choices, their stop rules and their log probabilities.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Choices")]
struct ChoiceArgs {
    /// Number of choices, generated together. Several are printed when all are done, one after the other, each followed
    /// by a newline
    #[arg(long, value_name = "N", allow_negative_numbers = true, default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=1024))]
    n: u16,
    /// Generate this many choices and keep the --n with the highest mean log probability [default: --n]
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=1024))]
    best_of: Option<u16>,
    /// Stop before this text; may be given several times
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    stop: Vec<String>,
    /// Include the --stop text in the output
    #[arg(long, requires = "stop")]
    include_stop_str: bool,
    /// Minimum number of output tokens: no stop rule applies before
    #[arg(long, value_name = "N", allow_negative_numbers = true, default_value_t = 0)]
    min_tokens: usize,
    /// Continue after end-of-text tokens
    #[arg(long)]
    ignore_eos: bool,
    /// Print the log probability of every output token, and of the N most likely ones at its position (needs --json or
    /// --prompts)
    #[arg(long, value_name = "N", allow_negative_numbers = true, requires = "objects")]
    logprobs: Option<usize>,
    /// Which log probabilities: raw (the model's) or processed (after penalties, temperature and filters)
    #[arg(long, value_name = "WHICH", default_value = "raw", requires = "logprobs")]
    logprobs_of: Which,
}

/// Value of `--logprobs-of`.
#[derive(Debug, Clone, Copy)]
struct Which(LogprobsOf);

impl FromStr for Which {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        match s {
            "raw" => Ok(Self(LogprobsOf::Raw)),
            "processed" => Ok(Self(LogprobsOf::Processed)),
            _ => Err("use raw or processed".to_owned()),
        }
    }
}

impl ChoiceArgs {
    /// Number of choices to generate.
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
/// What loading and generating report; a model without the tokenizer or the chat template that the options need.
pub fn run(args: &GenerateArgs, context: &Context) -> anyhow::Result<()> {
    let samples = check(args)?;
    let spec = args.guide.spec()?;
    if let Some(file) = &args.prompts {
        return prompts::run(file, args, &args.prompt_options(samples, spec), context);
    }
    let text = args.prompt.as_deref().map(prompt::text_of).transpose()?;
    let mut loaded = Loaded::open(&args.model, &args.runtime, context)?;
    let took = loaded.took;
    let prompt = match (&args.tokens, text) {
        (Some(ids), _) => ids.0.clone(),
        (None, Some(text)) => {
            let tokenizer = loaded.tokenizer?;
            let prompt = encode(args, &tokenizer, &text)?;
            loaded.tokenizer = Ok(tokenizer);
            prompt
        }
        (None, None) => {
            return Err(CliError::Usage("give a PROMPT, or --tokens".into()).into());
        }
    };
    let has_text = loaded.tokenizer.is_ok();
    let Parts { model, .. } = Parts::new(loaded);
    let adapter = args.adapter.open(&model.rt, model.decoder.config(), context)?;
    let params = args.params();
    args.sampling.explain(
        &[("--n", args.choices.n > 1), ("--best-of", args.choices.best_of.is_some())],
        context,
    );

    let config = model.decoder.config();
    let (tokens, context_len) = (prompt.len(), config.max_context);
    if tokens > context_len || tokens == context_len && args.max_tokens > 0 {
        return Err(l2_model::Error::PromptTooLong { tokens, context: context_len }.into());
    }
    let longest = tokens.saturating_add(args.max_tokens.max(1));
    let kv = args.kv.plan_engine(config, &model.rt, samples, longest, prompt.len());
    let kv = kv.with_context(|| {
        format!("{} prompt tokens and up to {} output tokens", prompt.len(), args.max_tokens)
    })?;
    kv.explain(&args.kv, context);
    let seed = args.sampling.seed();
    let request = EngineRequest {
        guide: spec.map(Into::into),
        seed,
        continues: !args.chat,
        adapter,
        ..EngineRequest::new(prompt.clone(), params.clone(), args.stop())
    };
    let request = GenerateRequest { request, n: args.choices.n.into(), best_of: samples };
    let max_lora_rank = args.adapter.max_rank();
    let options = EngineOptions { max_lora_rank, ..kv.engine(&args.speculation) };
    let mut generator = Generator::open(model, &options).map_err(start_error)?;
    // Before the file of a recording is created.
    generator.check(&request).map_err(usage)?;
    let recording = args.trace_blocks.as_deref().map(Recording::create).transpose()?;
    if let Some(recording) = &recording {
        generator.scheduler_mut().set_block_observer(Some(recording.observer()))?;
    }
    let speculates = args.speculation.speculative_config.is_some();
    let streams = samples == 1 && !args.json && has_text;
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
        let logprobs = params.logprobs;
        let response = Response::new(&prompt, seed, &generation, speculates, logprobs, took, kv);
        out::json_line(&response)?;
    } else if streams {
        Out::end_of_text()?;
    } else {
        let mut out = Out::new();
        for choice in &generation.choices {
            match has_text {
                true => out.text(&choice.text)?,
                false => out.text(&ids(&choice.tokens))?,
            }
            out.text("\n")?;
        }
        out.finish()?;
    }
    context.say(summary(prompt.len(), &generation, speculates));
    Ok(())
}

/// Token ids, for a model without a tokenizer.
fn ids(tokens: &[u32]) -> String {
    tokens.iter().map(u32::to_string).collect::<Vec<_>>().join(" ")
}

/// Converts errors that options of the command line cause to [`CliError::Usage`].
fn usage(why: GenerateError) -> anyhow::Error {
    match why {
        GenerateError::Refused(
            SubmitError::Params(_) | SubmitError::Guide(_) | SubmitError::NoTokenizer(_),
        )
        | GenerateError::Ranking => CliError::Usage(why.to_string()).into(),
        why => why.into(),
    }
}

impl GenerateArgs {
    fn params(&self) -> SamplingParams {
        SamplingParams {
            min_tokens: self.choices.min_tokens,
            logprobs: self.choices.logprobs(),
            ..self.sampling.params()
        }
    }

    fn stop(&self) -> StopRules {
        StopRules {
            ignore_eos: self.choices.ignore_eos,
            strings: self.choices.stop.clone(),
            include_stop_str: self.choices.include_stop_str,
            min_tokens: self.choices.min_tokens,
            max_tokens: self.max_tokens,
            ..StopRules::default()
        }
    }

    /// Default options of the prompts of a file.
    fn prompt_options(&self, best_of: usize, guide: Option<GuideSpec>) -> PromptOptions {
        PromptOptions {
            params: self.params(),
            stop: self.stop(),
            seed: self.sampling.given_seed(),
            n: self.choices.n.into(),
            best_of: self.choices.best_of.map(|_| best_of),
            guide,
            priority: 0,
            cache_salt: None,
        }
    }
}

/// Rejects options that contradict each other. Returns the number of choices to generate.
fn check(args: &GenerateArgs) -> Result<usize, CliError> {
    if args.trace_blocks.is_some() && args.kv.state != StateKind::Paged {
        let why = "--trace-blocks records blocks and requires --state paged";
        return Err(CliError::Usage(why.into()));
    }
    if args.guide.reads_stdin()
        && [&args.prompt, &args.prompts].into_iter().any(|from| from.as_deref() == Some("-"))
    {
        let why = "stdin cannot be both the prompt and the guide";
        return Err(CliError::Usage(why.into()));
    }
    if args.prompts.is_none() {
        if let Some(flag) = args.scheduler.given() {
            let why = format!("{flag} is only allowed with --prompts");
            return Err(CliError::Usage(why));
        }
    } else if args.kv.state != StateKind::Paged {
        let why = "--prompts shares a pool of blocks and requires --state paged";
        return Err(CliError::Usage(why.into()));
    }
    args.choices.best_of()
}

/// The tokenizer of a model whose prompts may be token ids: it then only decodes the output. A broken one is a warning,
/// a missing one is not.
pub(super) fn tokenizer_if_any(model: &Loaded) -> Option<l2_model::tokenizer::Tokenizer> {
    match &model.tokenizer {
        Ok(tokenizer) => Some(tokenizer.clone()),
        Err(l2_model::Error::Tokenizer(l2_model::tokenizer::TokenizerError::Missing {
            ..
        })) => None,
        Err(why) => {
            warn(format_args!("the output has token ids only, without text: {why}"));
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
