//! From a model that is loaded to an engine that answers many: the scheduler's options, and what is recorded of it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use l1_tensor::Device;
use l2_model::tokenizer::Tokenizer;
use l3_paged_kv::sizing::KvSpec;
use l5_scheduler::engine::{EngineModel, StartError, Startup};
use l5_scheduler::trace::Recorder;
use l5_scheduler::{Engine, EngineOptions, PolicyKind};

use super::context::Context;
use super::error::CliError;
use super::generate::tokenizer_if_any;
use super::kv::{KvArgs, KvReport};
use super::load::Loaded;

/// Who runs when.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Scheduler (many prompts)")]
pub struct SchedulerArgs {
    /// The most requests that run at once [default: 256]
    #[arg(long, value_name = "N")]
    pub max_num_seqs: Option<usize>,
    /// The most tokens of one step, all requests together [default: 2048]
    #[arg(long, value_name = "N")]
    pub max_num_batched_tokens: Option<usize>,
    /// The most tokens of one step that a long prompt may take while others are there; 0 for as many as there are
    /// [default: 0]
    #[arg(long, value_name = "N")]
    pub long_prefill_token_threshold: Option<usize>,
    /// The most tokens of a request, prompt and answer together [default: what the longest needs]
    #[arg(long, value_name = "N")]
    pub max_model_len: Option<usize>,
    /// Who goes first: fcfs, priority or strict-priority [default: fcfs]
    #[arg(long, value_name = "POLICY")]
    pub policy: Option<PolicyKind>,
    /// Compute every prompt from its beginning, even where its blocks are in the cache
    #[arg(long)]
    pub no_prefix_caching: bool,
    /// On CUDA: launch every kernel of every step by itself, instead of capturing steps that only decode and replaying them
    #[arg(long)]
    pub eager: bool,
    /// Record the run step by step, for `strata trace view`
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
}

/// What an engine will be asked for, to give it as much memory as that needs.
#[derive(Debug, Clone, Copy)]
pub struct Demand {
    /// Requests at once, at most.
    pub requests: usize,
    /// Tokens of the longest, prompt and answer together.
    pub longest: usize,
}

impl SchedulerArgs {
    /// The first of these options that was given.
    pub fn given(&self) -> Option<&'static str> {
        let given = [
            ("--max-num-seqs", self.max_num_seqs.is_some()),
            ("--max-num-batched-tokens", self.max_num_batched_tokens.is_some()),
            ("--long-prefill-token-threshold", self.long_prefill_token_threshold.is_some()),
            ("--max-model-len", self.max_model_len.is_some()),
            ("--policy", self.policy.is_some()),
            ("--no-prefix-caching", self.no_prefix_caching),
            ("--eager", self.eager),
            ("--trace", self.trace.is_some()),
        ];
        given.into_iter().find(|(_, given)| *given).map(|(name, _)| name)
    }

    fn options(&self, kv: &KvArgs, demand: Demand, context: usize) -> EngineOptions {
        let off = EngineOptions::default();
        let tokens = self.max_num_batched_tokens.unwrap_or(off.max_num_batched_tokens);
        // Fewer seats than were asked for are told as an error; nobody asked for the default.
        let seats = off.max_num_seqs.min(demand.requests.max(1)).min(tokens);
        EngineOptions {
            policy: self.policy.unwrap_or_default(),
            max_num_seqs: self.max_num_seqs.unwrap_or(seats),
            max_num_batched_tokens: tokens,
            long_prefill_token_threshold: self.long_prefill_token_threshold.unwrap_or(0),
            max_model_len: Some(self.max_model_len.unwrap_or(demand.longest.clamp(2, context))),
            block_size: kv.block_size,
            kv_dtype: kv.dtype(),
            kv_memory: kv.kv_memory,
            enable_prefix_caching: !self.no_prefix_caching,
            eager: self.eager,
            ..off
        }
    }
}

/// An engine, and what must be told of it.
pub struct Serving {
    /// The engine.
    pub engine: Engine,
    /// What a token takes.
    pub spec: KvSpec,
    recording: Option<(PathBuf, Recorder)>,
}

/// The parts of a loaded model that an engine and its command share.
pub struct Parts {
    /// For the engine.
    pub model: EngineModel,
    /// For prompts.
    pub tokenizer: Option<Tokenizer>,
}

impl Parts {
    /// Of a model that was loaded.
    pub fn new(loaded: Loaded) -> Self {
        let tokenizer = tokenizer_if_any(&loaded);
        let model = EngineModel {
            rt: loaded.rt,
            decoder: Arc::new(loaded.decoder),
            tokenizer: tokenizer.clone(),
            stop_tokens: loaded.stop_tokens,
            startup: Startup::default(),
        };
        Self { model, tokenizer }
    }
}

impl Serving {
    /// An engine with memory for what will be asked of it.
    ///
    /// # Errors
    /// [`CliError::Usage`] for limits that contradict each other; what does not fit.
    pub fn start(
        model: EngineModel,
        name: &str,
        args: &SchedulerArgs,
        kv: &KvArgs,
        demand: Demand,
        context: &Context,
    ) -> anyhow::Result<Self> {
        let on_device = model.rt.device() != Device::Cpu;
        let config = model.decoder.config();
        let spec = kv.spec(config, &model.rt)?;
        let options = args.options(kv, demand, config.max_context);
        // Before the pool: a file that cannot be made is known at once.
        let recording = args.trace.as_deref().map(|path| create(path, name)).transpose()?;
        let engine = Engine::new(model, &options).map_err(|why| match why {
            StartError::Config(_) | StartError::Context { .. } => {
                CliError::Usage(why.to_string()).into()
            }
            why => anyhow::Error::from(why),
        })?;
        if context.verbose {
            engine.startup().to_string().lines().for_each(|line| context.say(line));
        } else if on_device {
            for step in engine.startup().steps.iter().filter(|step| step.name == "capture") {
                let ms = step.took.as_secs_f64() * 1e3;
                context.say(format_args!("capture: {}, {ms:.0} ms", step.what));
            }
        }
        if let Some((_, recorder)) = &recording {
            engine.handle().observe(recorder.observer())?;
        }
        Ok(Self { engine, spec, recording })
    }

    /// For `--json`.
    pub fn kv(&self, cached_tokens: usize) -> KvReport {
        let blocks = self.engine.handle().config().num_gpu_blocks;
        KvReport::of_pool(&self.spec, blocks, cached_tokens)
    }

    /// End it, and write out what was recorded.
    ///
    /// # Errors
    /// An engine that failed; [`CliError::Output`] for a recording that could not be written.
    pub fn finish(self) -> anyhow::Result<()> {
        self.engine.shutdown()?;
        if let Some((path, recorder)) = self.recording {
            recorder.finish().map_err(|reason| CliError::Output { path, reason })?;
        }
        Ok(())
    }
}

fn create(path: &Path, model: &str) -> Result<(PathBuf, Recorder), CliError> {
    let refused = |reason| CliError::Output { path: path.to_owned(), reason };
    let recorder = Recorder::create(path).map_err(refused)?;
    Ok((path.to_owned(), recorder.with_model(model)))
}
