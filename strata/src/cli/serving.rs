//! An engine for commands that serve many prompts: its options, its start and its recording.

use std::sync::Arc;

use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Args, Command, FromArgMatches};
use l1_tensor::Device;
use l2_model::tokenizer::Tokenizer;
use l3_paged_kv::sizing::KvSpec;
use l5_scheduler::engine::{EngineModel, StartError, Startup};
use l5_scheduler::{Engine, EngineOptions};

use super::context::Context;
use super::error::CliError;
use super::generate::tokenizer_if_any;
use super::kv::{KvArgs, KvReport};
use super::load::Loaded;
use super::options::{
    CaptureOptions, PrefixCachingOptions, SchedulerOptions, SpeculationOptions, TraceOptions,
    defaults_to,
};
use super::recording::StepRecording;

/// The scheduler's options of a command that serves many prompts.
#[derive(Debug, Clone)]
pub struct SchedulerArgs {
    options: OptionGroups,
    /// The first of them that the command line gives.
    given: Option<String>,
}

#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Scheduler (many prompts)", mut_args(defaults))]
struct OptionGroups {
    #[command(flatten)]
    limits: SchedulerOptions,
    #[command(flatten)]
    prefix_caching: PrefixCachingOptions,
    #[command(flatten)]
    capture: CaptureOptions,
    #[command(flatten)]
    trace: TraceOptions,
}

/// States the defaults that these commands compute.
fn defaults(arg: Arg) -> Arg {
    match arg.get_id().as_str() {
        "max_num_seqs" => defaults_to(arg, "256, or the number of requests if that is less"),
        "max_num_batched_tokens" => defaults_to(arg, "2048"),
        "max_model_len" => defaults_to(arg, "what the longest request needs"),
        _ => arg,
    }
}

impl Args for SchedulerArgs {
    fn augment_args(command: Command) -> Command {
        OptionGroups::augment_args(command)
    }

    fn augment_args_for_update(command: Command) -> Command {
        OptionGroups::augment_args_for_update(command)
    }
}

impl FromArgMatches for SchedulerArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let command = OptionGroups::augment_args(Command::new("scheduler"));
        let given = |arg: &&Arg| {
            matches.value_source(arg.get_id().as_str()) == Some(ValueSource::CommandLine)
        };
        let given = command.get_arguments().find(given).and_then(Arg::get_long);
        Ok(Self {
            options: OptionGroups::from_arg_matches(matches)?,
            given: given.map(|long| format!("--{long}")),
        })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// The requests that an engine will get, which decide how much memory it needs.
#[derive(Debug, Clone, Copy)]
pub struct Demand {
    /// Maximum number of requests at once.
    pub requests: usize,
    /// Tokens of the longest request, prompt and completion together.
    pub longest: usize,
    /// Maximum rank of their LoRA adapters. `None`: they have none.
    pub max_lora_rank: Option<usize>,
}

impl SchedulerArgs {
    /// The first of these options that the command line gives.
    pub fn given(&self) -> Option<&str> {
        self.given.as_deref()
    }

    fn options(
        &self,
        speculation: &SpeculationOptions,
        kv: &KvArgs,
        demand: Demand,
        context: usize,
    ) -> EngineOptions {
        let limits = &self.options.limits;
        let mut options = EngineOptions {
            max_model_len: Some(demand.longest.clamp(2, context)),
            block_size: kv.blocks.block_size,
            kv_dtype: kv.memory.kv_dtype.0,
            kv_memory: kv.memory.kv_memory,
            enable_prefix_caching: self.options.prefix_caching.on(),
            eager: self.options.capture.eager,
            speculative: speculation.speculative_config.clone(),
            max_lora_rank: demand.max_lora_rank,
            ..EngineOptions::default()
        };
        limits.set(&mut options);
        // A number that was given stays, so that one above the tokens of a step is reported as an error.
        if limits.max_num_seqs.is_none() {
            let useful = demand.requests.max(1).min(options.max_num_batched_tokens);
            options.max_num_seqs = options.max_num_seqs.min(useful);
        }
        options
    }
}

/// An engine with its recording.
pub struct Serving {
    /// The engine.
    pub engine: Engine,
    /// Memory that a token takes in the KV cache.
    pub spec: KvSpec,
    recording: Option<StepRecording>,
}

/// The parts of a loaded model that an engine and its command share.
pub struct Parts {
    /// The engine's part.
    pub model: EngineModel,
    /// The tokenizer for prompts.
    pub tokenizer: Option<Tokenizer>,
}

impl Parts {
    /// Takes a loaded model apart.
    pub fn new(loaded: Loaded) -> Self {
        let tokenizer = tokenizer_if_any(&loaded);
        let model = EngineModel {
            rt: loaded.rt,
            decoder: Arc::new(loaded.decoder),
            tokenizer: tokenizer.clone(),
            stop_tokens: loaded.stop_tokens,
            digest: loaded.digest,
            startup: Startup::default(),
        };
        Self { model, tokenizer }
    }
}

/// Converts errors that options of the command line cause to [`CliError::Usage`].
pub fn start_error(why: StartError) -> anyhow::Error {
    match why {
        StartError::Config(_) | StartError::Context { .. } | StartError::Speculation(_) => {
            CliError::Usage(why.to_string()).into()
        }
        why => why.into(),
    }
}

impl Serving {
    /// Starts an engine with memory for these requests.
    ///
    /// # Errors
    /// [`CliError::Usage`] for limits that contradict each other; a pool that does not fit the memory.
    pub fn start(
        model: EngineModel,
        name: &str,
        args: &SchedulerArgs,
        speculation: &SpeculationOptions,
        kv: &KvArgs,
        demand: Demand,
        context: &Context,
    ) -> anyhow::Result<Self> {
        let on_device = model.rt.device() != Device::Cpu;
        let config = model.decoder.config();
        let spec = kv.spec(config, &model.rt)?;
        let options = args.options(speculation, kv, demand, config.max_context);
        // Before the pool, so that a file that cannot be created is reported at once.
        let recording = args.options.trace.recording(name)?;
        let engine = Engine::new(model, &options).map_err(start_error)?;
        if context.verbose {
            engine.startup().to_string().lines().for_each(|line| context.say(line));
        } else if on_device {
            for step in engine.startup().steps.iter().filter(|step| step.name == "capture") {
                let ms = step.took.as_secs_f64() * 1e3;
                context.say(format_args!("capture: {}, {ms:.0} ms", step.what));
            }
        }
        if let Some(recording) = &recording {
            recording.observe(engine.handle())?;
        }
        Ok(Self { engine, spec, recording })
    }

    /// The KV cache's part of `--json`.
    pub fn kv(&self, cached_tokens: usize) -> KvReport {
        let blocks = self.engine.handle().config().num_gpu_blocks;
        KvReport::of_pool(&self.spec, blocks, cached_tokens)
    }

    /// Shuts the engine down and writes out the recording.
    ///
    /// # Errors
    /// An engine that failed; [`CliError::Output`] for a recording that cannot be written.
    pub fn finish(self) -> anyhow::Result<()> {
        self.engine.shutdown()?;
        if let Some(recording) = self.recording {
            recording.finish()?;
        }
        Ok(())
    }
}
