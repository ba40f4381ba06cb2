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
use l2_model::{Decoder, ModelConfig, ModelFiles, WorkspaceSpec};
use l3_paged_kv::ManagerConfig;
use l3_paged_kv::sizing::{
    Budget, Bytes, KvSpec, Memory, Plan, Room, SizingError, device_memory, peak_activation,
};

use super::options::DEFAULT_KV_BYTES;
use super::startup::Startup;
use super::{EngineOptions, ModelFacts};
use crate::runner::ModelRunner;
use crate::{ConfigError, EngineCore, ExecuteError, Executor, Scheduler, SchedulerConfig};

/// Why an engine does not come to be.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// No such device.
    #[error(transparent)]
    Device(#[from] l1_tensor::Error),
    /// The checkpoint.
    #[error(transparent)]
    Model(#[from] l2_model::Error),
    /// The memory does not suffice.
    #[error(transparent)]
    Sizing(#[from] SizingError),
    /// Limits that contradict each other.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The buffers of a step.
    #[error(transparent)]
    Runner(#[from] ExecuteError),
    /// More tokens than the model can place.
    #[error(
        "max_model_len {asked} is more than the {context} tokens that this model was made for: lower it"
    )]
    Context {
        /// What was asked for.
        asked: usize,
        /// What the model has.
        context: usize,
    },
    /// A share of a memory that cannot be found out.
    #[error("memory_utilization needs to know this machine's memory, and {0}: give kv_memory")]
    Memory(String),
    /// No thread.
    #[error("no thread for the engine: {0}")]
    Thread(std::io::Error),
}

/// A model that an engine can be made for.
#[derive(Clone)]
pub struct EngineModel {
    /// What it runs on.
    pub rt: Runtime,
    /// Its weights.
    pub decoder: Arc<Decoder>,
    /// From tokens to text; without one there are only tokens.
    pub tokenizer: Option<Tokenizer>,
    /// Tokens that end an answer.
    pub stop_tokens: Vec<u32>,
    /// What it took to come so far.
    pub startup: Startup,
}

impl EngineModel {
    /// Read a checkpoint: a directory as Hugging Face has them, or a .gguf file.
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
            let what = Bytes(decoder.weight_bytes() as u64).to_string();
            Ok(((decoder, tokenizer.ok()), what))
        })?;
        // One that the model has no logit for cannot come.
        let known = |id: &&u32| (**id as usize) < decoder.config().vocab;
        let stop_tokens = files.stop_tokens().iter().filter(known).copied().collect();
        Ok(Self { rt, decoder: Arc::new(decoder), tokenizer, stop_tokens, startup })
    }

    /// What a handle must know of it.
    pub(super) fn facts(&self) -> ModelFacts {
        ModelFacts {
            vocab: self.decoder.config().vocab,
            tokenizer: self.tokenizer.clone(),
            stop_tokens: self.stop_tokens.clone(),
        }
    }

    /// The scheduler and the runner: everything but the thread.
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
        let (scheduler, runner) = startup.step("pool", || -> Result<_, StartError> {
            let (limits, plan) = limits(options, config, &spec, room)?;
            let blocks = ManagerConfig {
                prefix_caching: limits.enable_prefix_caching,
                max_blocks_per_seq: limits.blocks(limits.max_model_len).min(limits.capacity()),
                namespace: config.architecture.clone(),
                ..ManagerConfig::new(limits.num_gpu_blocks, limits.block_size)
            };
            let scheduler = Scheduler::with_blocks(limits.clone(), blocks)?;
            let (decoder, tokenizer) = (self.decoder.clone(), self.tokenizer.clone());
            let runner = ModelRunner::new(decoder, tokenizer, &self.rt, &limits, spec.dtype())?;
            Ok(((scheduler, runner), plan.to_string()))
        })?;
        let mut core = EngineCore::new(scheduler, runner);
        startup.step("capture", || -> Result<_, StartError> {
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

    /// How many blocks there would be, and the arithmetic behind it; nothing of it is taken.
    ///
    /// # Errors
    /// [`StartError`].
    pub fn plan(&self, options: &EngineOptions) -> Result<Plan, StartError> {
        let ((spec, room), _) = self.room(options)?;
        Ok(limits(options, self.decoder.config(), &spec, room)?.1)
    }

    /// What a token takes, and the memory there is for all of them.
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
                max_rows: options.max_num_seqs,
                max_context: options.max_model_len.unwrap_or(config.max_context),
            };
            let peak_activation = peak_activation(&self.decoder, &self.rt, step)?;
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
        let room = options.kv_memory.unwrap_or_else(|| {
            let len = options.max_model_len.unwrap_or(config.max_context);
            let blocks = len.div_ceil(options.block_size).saturating_mul(options.max_num_seqs);
            let all = spec.pool_bytes(blocks.saturating_add(1));
            Budget::exact(all.min(self.unasked()))
        });
        Ok(((spec, room.into()), token))
    }
}

impl EngineModel {
    /// The most memory that keys and values take where nobody says how much, in bytes. On a device it is what the weights
    /// have left of it, but for a fifth, which activations and recordings need.
    fn unasked(&self) -> u64 {
        let device = self.rt.gpu().filter(|gpu| !gpu.is_emulated());
        match device.and_then(|gpu| gpu.memory().ok()) {
            Some((free, _)) => (free - free / 5) as u64,
            None => DEFAULT_KV_BYTES,
        }
    }
}

/// The scheduler's limits, and how the pool came to its size. A length that was asked for must fit; one that was not is what
/// fits.
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
