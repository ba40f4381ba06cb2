//! From a checkpoint to an engine, in named steps.
//!
//! ```text
//! device    what the model runs on                          open
//! runner    the checkpoint's config: what there is to run
//! weights   read, and laid out for the device
//! kv        what a token takes; the largest step, if memory is to be what it leaves      build
//! pool      memory -> blocks, and the buffers of a step
//! capture   decode steps recorded in advance, of the widths that steps are padded to: none on a CPU
//! ```

use std::path::Path;
use std::sync::Arc;

use l1_tensor::{Device, Runtime, RuntimeOptions};
use l2_model::tokenizer::Tokenizer;
use l2_model::{Decoder, ModelConfig, ModelDigest, ModelFiles, WorkspaceSpec};
use l3_paged_kv::ManagerConfig;
use l3_paged_kv::sizing::{
    Budget, Bytes, KvSpec, Memory, Plan, Room, SizingError, device_memory, peak_activation,
};
use l3_paged_kv::tier::Numerics;

use super::options::DEFAULT_KV_BYTES;
use super::startup::Startup;
use super::{EngineOptions, ModelFacts};
use crate::runner::ModelRunner;
use crate::speculation::SpeculationError;
use crate::tiers::TierOptionsError;
use crate::{
    ConfigError, EngineCore, ExecuteError, Executor, RequestAdapter, Scheduler, SchedulerConfig,
};

/// Why an engine cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The device cannot be used.
    #[error(transparent)]
    Device(#[from] l1_tensor::Error),
    /// The checkpoint cannot be loaded.
    #[error(transparent)]
    Model(#[from] l2_model::Error),
    /// The memory does not suffice.
    #[error(transparent)]
    Sizing(#[from] SizingError),
    /// The limits contradict each other.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The runner's buffers cannot be allocated.
    #[error(transparent)]
    Runner(#[from] ExecuteError),
    /// `max_model_len` is larger than the model's context.
    #[error("max_model_len must be at most {context}, this model's context length, got {asked}")]
    Context {
        /// Requested `max_model_len`.
        asked: usize,
        /// Context length of the model.
        context: usize,
    },
    /// `memory_utilization` is set, and the size of the memory is unknown.
    #[error("memory_utilization needs to know this machine's memory, and {0}: give kv_memory")]
    Memory(String),
    /// `kv_memory` is more than the device has.
    #[error("kv_memory must be at most {total}, the memory of {device}, got {asked}: reduce it")]
    KvMemory {
        /// Requested memory.
        asked: Bytes,
        /// Total memory of the device.
        total: Bytes,
        /// The device.
        device: Device,
    },
    /// Speculation is misconfigured.
    #[error(transparent)]
    Speculation(#[from] SpeculationError),
    /// The tiers cannot be opened.
    #[error(transparent)]
    Tiers(#[from] TierOptionsError),
    /// The system refused a thread.
    #[error("the engine's thread cannot be started: {0}")]
    Thread(std::io::Error),
}

/// A loaded model, for which an engine can be created.
#[derive(Clone)]
pub struct EngineModel {
    /// Runtime that it runs on.
    pub rt: Runtime,
    /// The model, with its weights.
    pub decoder: Arc<Decoder>,
    /// Tokenizer; without one, requests and responses have tokens only.
    pub tokenizer: Option<Tokenizer>,
    /// Tokens that end an output.
    pub stop_tokens: Vec<u32>,
    /// Digest of the checkpoint, which names the model in keys that leave the process. `None` for weights that no
    /// checkpoint holds: their keys and values must not leave it.
    pub digest: Option<ModelDigest>,
    /// Startup report so far.
    pub startup: Startup,
}

impl EngineModel {
    /// Reads a checkpoint: a directory in Hugging Face's format, or a .gguf file.
    ///
    /// # Errors
    /// [`StartError`].
    pub fn open(path: &Path, options: RuntimeOptions) -> Result<Self, StartError> {
        let mut startup = Startup::default();
        let rt = startup.step("device", || -> Result<_, StartError> {
            let rt = Runtime::new(options)?;
            let what = format!("{rt}; {}", rt.device_reason());
            Ok((rt, what))
        })?;
        Self::load(path, rt, startup)
    }

    /// Reads a checkpoint as [`EngineModel::open`] does, for a runtime that is there: models that share a runtime share
    /// its thread pool, and their engines take [`Turns`](crate::Turns).
    ///
    /// # Errors
    /// [`StartError`].
    pub fn open_on(path: &Path, rt: &Runtime) -> Result<Self, StartError> {
        Self::load(path, rt.clone(), Startup::default())
    }

    fn load(path: &Path, rt: Runtime, mut startup: Startup) -> Result<Self, StartError> {
        let files = startup.step("runner", || -> Result<_, StartError> {
            let files = ModelFiles::open(path)?;
            let config = files.config();
            let (layers, context) = (config.layers.len(), config.max_context);
            let what = format!("{}, {layers} layers, {context} tokens", config.architecture);
            Ok((files, what))
        })?;
        let (decoder, tokenizer) = startup.step("weights", || -> Result<_, StartError> {
            let (decoder, tokenizer) = files.decoder_and_tokenizer(&rt);
            let decoder = decoder?;
            let size = Bytes(decoder.weight_bytes() as u64);
            let what = format!("{size} in {}", decoder.weight_storage());
            Ok(((decoder, tokenizer.ok()), what))
        })?;
        let stop_tokens = ModelFacts::stop_tokens_of(&files);
        // After the weights: what it reads is in the page cache then.
        let digest = Some(files.digest());
        Ok(Self { rt, decoder: Arc::new(decoder), tokenizer, stop_tokens, digest, startup })
    }

    /// Facts about the model that a handle needs.
    pub fn facts(&self) -> ModelFacts {
        ModelFacts {
            vocab: self.decoder.config().vocab,
            tokenizer: self.tokenizer.clone(),
            stop_tokens: self.stop_tokens.clone(),
        }
    }

    /// Loads the LoRA adapter in a directory for this model. Its name is the last part of the path. An engine takes it if
    /// [`EngineOptions::max_lora_rank`] is at least its rank.
    ///
    /// # Errors
    /// As [`RequestAdapter::open`].
    pub fn adapter(&self, path: &Path, max_rank: usize) -> l2_model::Result<RequestAdapter> {
        RequestAdapter::open(&self.rt, path, self.decoder.config(), max_rank)
    }

    /// Namespace of keys that leave the process: the name of [`EngineOptions::namespace`], or else the architecture, and
    /// the model's digest.
    pub fn namespace(&self, options: &EngineOptions) -> String {
        let name = options.namespace.as_ref().unwrap_or(&self.decoder.config().architecture);
        self.digest.map_or_else(|| name.clone(), |digest| digest.namespace(name))
    }

    /// Creates the scheduler and the runner: everything but the thread.
    ///
    /// # Errors
    /// [`StartError`].
    pub fn core(
        mut self,
        options: &EngineOptions,
    ) -> Result<(EngineCore<ModelRunner>, Startup), StartError> {
        let mut startup = std::mem::take(&mut self.startup);
        let config = self.decoder.config();
        let (spec, room) = startup.step("kv", || self.room(options))?;
        let (limits, plan) = limits(options, config, &spec, room)?;
        let mut tiers = None;
        if options.tiers.has_any() {
            tiers = startup.step("tiers", || -> Result<_, StartError> {
                let numerics = Numerics {
                    weights: self.decoder.weight_format().into(),
                    activations: self.rt.activation_dtype(),
                    kv: spec.dtype(),
                };
                let tiers =
                    options.tiers.open(self.digest.as_ref(), &numerics, limits.block_size)?;
                Ok((tiers, options.tiers.summary(spec.bytes_per_token())))
            })?;
        }
        let mut drafter = None;
        if let Some(config) = &options.speculative {
            drafter = startup.step("drafter", || {
                self.drafter(config, &limits).map(|(drafter, what)| (Some(drafter), what))
            })?;
        }
        let (scheduler, runner) = startup.step("pool", || -> Result<_, StartError> {
            let blocks = ManagerConfig {
                prefix_caching: limits.enable_prefix_caching,
                max_blocks_per_seq: limits.blocks(limits.max_model_len).min(limits.capacity()),
                namespace: self.namespace(options),
                ..ManagerConfig::new(limits.num_gpu_blocks, limits.block_size)
            };
            let mut scheduler = Scheduler::with_blocks(limits.clone(), blocks)?;
            if let Some(tiers) = &tiers {
                let retention = limits.policy.retention_with_memory(limits.continuum_ttl);
                scheduler = scheduler.with_kv_connector(Box::new(tiers.connector()));
                scheduler = scheduler.with_retention(retention);
            }
            let (decoder, tokenizer) = (self.decoder.clone(), self.tokenizer.clone());
            let mut runner = ModelRunner::new(decoder, tokenizer, &self.rt, &limits, spec.dtype())?
                .with_adapters(options.max_lora_rank)?
                .with_turns(options.turns.clone())
                .with_tiers(tiers.as_ref());
            if let (Some(config), Some(source)) = (&options.speculative, drafter) {
                runner = runner
                    .with_drafter(source.drafter, config.num_drafts(), config.window)
                    .with_hidden_rows(source.taps);
                if config.draws() {
                    runner = runner.with_drawn_drafts();
                }
            }
            Ok(((scheduler, runner), plan.to_string()))
        })?;
        let mut core = EngineCore::new(scheduler, runner);
        if let Some(began) = options.clock {
            core.set_clock(began);
        }
        startup.step("capture", || -> Result<_, StartError> {
            // Captured steps need some of the kernels; the first prompt and the first sampled token must not wait for
            // the others. With a cold cache this takes some tens of seconds.
            if let Some(gpu) = self.rt.gpu() {
                gpu.compile_all().map_err(ExecuteError::from)?;
            }
            if !options.eager {
                core.executor_mut().capture()?;
            }
            let widths = core.executor().caps().decode_widths;
            let what = match (self.rt.device(), widths.as_slice()) {
                (Device::Cpu, _) => "none: a step on a CPU needs no launches".to_owned(),
                (_, []) => "none: every step is launched kernel by kernel (eager)".to_owned(),
                (_, widths) => format!("decode steps of {widths:?} rows"),
            };
            Ok(((), what))
        })?;
        Ok((core, startup))
    }

    /// Computes the number of blocks that the pool would have, and how it follows from the memory. Allocates nothing.
    ///
    /// # Errors
    /// [`StartError`].
    pub fn plan(&self, options: &EngineOptions) -> Result<Plan, StartError> {
        let ((spec, room), _) = self.room(options)?;
        Ok(limits(options, self.decoder.config(), &spec, room)?.1)
    }

    /// KV bytes of a token, and the memory for the whole pool.
    fn room(&self, options: &EngineOptions) -> Result<((KvSpec, Room), String), StartError> {
        let config = self.decoder.config();
        let dtype = options.kv_dtype.unwrap_or(self.rt.activation_dtype());
        let spec = KvSpec::from_config(config, dtype, options.block_size)?;
        let token = format!("{} a token in {dtype}", Bytes(spec.bytes_per_token()));
        if let Some(utilisation) = options.memory_utilization {
            let weights = Bytes(self.decoder.weight_bytes() as u64);
            let total = device_memory(&self.rt, weights).map_err(StartError::Memory)?;
            let step = WorkspaceSpec {
                max_tokens: options.max_num_batched_tokens,
                max_rows: options.scheduler(2, 1).max_logit_rows(),
                max_context: options.max_model_len.unwrap_or(config.max_context),
            };
            let lora = options.max_lora_rank;
            let peak_activation = peak_activation(&self.decoder, &self.rt, step, lora)?;
            let memory = Memory {
                total,
                utilisation,
                weights,
                peak_activation,
                margin: Bytes(total.0 / 50),
            };
            let what = format!("{token}; the largest step takes {peak_activation}");
            return Ok(((spec, memory.into()), what));
        }
        // Where the system does not report its memory, allocating is what fails.
        if let Some(asked) = options.kv_memory.map(|budget| budget.bytes())
            && let Ok(total) = device_memory(&self.rt, Bytes(0))
            && asked > total
        {
            return Err(StartError::KvMemory { asked, total, device: self.rt.device() });
        }
        let room = options.kv_memory.map(Room::Budget).unwrap_or_else(|| {
            let len = options.max_model_len.unwrap_or(config.max_context);
            let blocks = len.div_ceil(options.block_size).saturating_mul(options.max_num_seqs);
            let all = spec.pool_bytes(blocks.saturating_add(1));
            Room::Default(Budget::exact(all.min(self.unasked())))
        });
        Ok(((spec, room), token))
    }
}

impl EngineModel {
    /// Maximum memory of the KV cache if `kv_memory` is not set, in bytes. On a device it is four fifths of what the
    /// weights leave free; the last fifth is for activations and captured steps.
    fn unasked(&self) -> u64 {
        let device = self.rt.gpu().filter(|gpu| !gpu.is_emulated());
        match device.and_then(|gpu| gpu.memory().ok()) {
            Some((free, _)) => (free - free / 5) as u64,
            None => DEFAULT_KV_BYTES,
        }
    }
}

/// The scheduler's limits, and how the pool's size was computed. A `max_model_len` that is set must fit the pool;
/// without one, it is the longest sequence that fits.
fn limits(
    options: &EngineOptions,
    config: &ModelConfig,
    spec: &KvSpec,
    room: Room,
) -> Result<(SchedulerConfig, Plan), StartError> {
    let context = config.max_context;
    if let Some(asked) = options.max_model_len.filter(|asked| *asked > context) {
        return Err(StartError::Context { asked, context });
    }
    let plan = match options.max_model_len {
        Some(len) => Plan::new(spec, room, len)?,
        None => {
            let longest = Plan::new(spec, room, 1)?.tokens().min(context);
            Plan::new(spec, room, longest)?
        }
    };
    let longest = options.max_model_len.unwrap_or(plan.tokens().min(context));
    let limits = options.scheduler(plan.num_blocks(), longest);
    limits.validate()?;
    Ok((limits, plan))
}
