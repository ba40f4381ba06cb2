//! Options of the KV cache: `--state`, `--block-size`, `--kv-dtype` and `--kv-memory`; and the plan of its memory.

use std::fmt;
use std::str::FromStr;

use anyhow::Context as _;
use l1_tensor::ops::TILE;
use l1_tensor::{DType, Device, Runtime};
use l2_model::generate::PREFILL_CHUNK;
use l2_model::{ContiguousState, ModelConfig, SequenceState};
use l3_paged_kv::sizing::{Budget, Bytes, KvSpec, Plan};
use l3_paged_kv::{PagedOptions, PagedState};
use l5_scheduler::EngineOptions;
use serde::Serialize;

use super::context::Context;
use super::options::{BlockOptions, KvMemoryOptions, SpeculationOptions, defaults_to};
use server::words::count;

/// Options of the KV cache.
#[derive(Debug, Clone, clap::Args)]
#[command(mut_args(|arg| match arg.get_id().as_str() {
    "kv_memory" => defaults_to(arg, "what the command needs"),
    _ => arg,
}))]
pub struct KvArgs {
    /// Layout of the KV cache: paged (blocks, which sequences with the same prefix share) or contiguous (one region of
    /// memory for each sequence, nothing shared)
    #[arg(long, value_name = "STATE", default_value = "paged")]
    pub state: StateKind,
    #[command(flatten)]
    pub blocks: BlockOptions,
    #[command(flatten)]
    pub memory: KvMemoryOptions,
}

/// Kind of [`SequenceState`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum StateKind {
    /// One region of memory for each sequence.
    Contiguous,
    /// Blocks of a pool.
    Paged,
}

impl FromStr for StateKind {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        match s {
            "contiguous" => Ok(Self::Contiguous),
            "paged" => Ok(Self::Paged),
            _ => Err(format!("`{s}` is not a state: use contiguous or paged")),
        }
    }
}

/// Planned KV cache for a model and a number of sequences.
#[derive(Debug, Clone)]
pub struct Kv {
    state: StateKind,
    /// Device whose memory it is in.
    device: Device,
    /// Data type and block size.
    spec: KvSpec,
    /// Number of sequences at once.
    slots: usize,
    /// Maximum number of tokens of each sequence.
    pub max_len: usize,
    /// Plan of the pool's size; contiguous memory needs none.
    plan: Option<Plan>,
}

/// The KV cache in the output of `--json`.
#[derive(Debug, Serialize)]
pub struct KvReport {
    state: StateKind,
    /// Data type, by the names of `--kv-dtype`.
    dtype: &'static str,
    /// Tokens per block; `null` without blocks.
    block_size: Option<usize>,
    /// Number of blocks of the pool, including the null block; `null` without blocks.
    num_blocks: Option<usize>,
    /// Allocated memory, in bytes.
    bytes: u64,
    bytes_per_token: u64,
    /// Number of prompt tokens that were cached.
    cached_tokens: usize,
}

impl KvArgs {
    /// Plans memory for `slots` sequences of `max_len` tokens at once, without an engine: as much as they need, or
    /// `--kv-memory`.
    ///
    /// # Errors
    /// Sequences that do not fit `--kv-memory`, with the arithmetic and what is missing.
    pub fn plan(
        &self,
        config: &ModelConfig,
        rt: &Runtime,
        slots: usize,
        max_len: usize,
    ) -> anyhow::Result<Kv> {
        if self.state == StateKind::Paged {
            return self.plan_engine(config, rt, slots, max_len, 0);
        }
        let spec = self.spec(config, rt)?;
        let max_len = max_len.clamp(1, config.max_context);
        let kv = Kv { state: self.state, device: rt.device(), spec, slots, max_len, plan: None };
        self.fit(&kv, kv.bytes(), "", "")?;
        Ok(kv)
    }

    /// Plans memory of an engine that runs `slots` sequences of `max_len` tokens at once, which begin with the same
    /// `prompt` tokens: its full blocks are needed once. Under `--state contiguous` a sequence is one block, so nothing
    /// is shared.
    ///
    /// # Errors
    /// As [`KvArgs::plan`].
    pub fn plan_engine(
        &self,
        config: &ModelConfig,
        rt: &Runtime,
        slots: usize,
        max_len: usize,
        prompt: usize,
    ) -> anyhow::Result<Kv> {
        let max_len = max_len.clamp(1, config.max_context);
        let block_size = match self.state {
            StateKind::Paged => self.blocks.block_size,
            StateKind::Contiguous => max_len.next_multiple_of(TILE),
        };
        let dtype = self.memory.kv_dtype.0.unwrap_or(rt.activation_dtype());
        let spec = KvSpec::from_config(config, dtype, block_size)?;
        // The null block, what the sequences share, and what each has of its own. The prompt's last token is computed
        // for every sequence, for its logits, so its block is never shared.
        let each = max_len.div_ceil(block_size);
        let shared = (prompt.saturating_sub(1) / block_size).min(each);
        let own = (each - shared).saturating_mul(slots);
        let blocks = own.saturating_add(shared).saturating_add(1);
        let sharing = match shared {
            1.. if slots > 1 => format!(", the first {} of them shared,", shared * block_size),
            _ => String::new(),
        };
        let kv = |plan| {
            let (state, device, spec) = (self.state, rt.device(), spec.clone());
            Kv { state, device, spec, slots, max_len, plan }
        };
        if self.state == StateKind::Contiguous {
            let kv = kv(None);
            self.fit(&kv, kv.bytes(), "", "")?;
            return Ok(kv);
        }
        self.fit(&kv(None), spec.pool_bytes(blocks), &sharing, "and the null block ")?;
        // One spare block.
        let enough = Budget::exact(spec.pool_bytes(blocks.saturating_add(1)));
        let plan = Plan::new(&spec, self.memory.kv_memory.unwrap_or(enough), max_len)?;
        Ok(kv(Some(plan)))
    }

    /// Checks that `needed` bytes fit `--kv-memory`.
    fn fit(&self, kv: &Kv, needed: u64, sharing: &str, null: &str) -> anyhow::Result<()> {
        let Some(memory) = self.memory.kv_memory.filter(|memory| needed > memory.bytes().0) else {
            return Ok(());
        };
        let (have, slots, max_len) = (memory.bytes(), kv.slots, kv.max_len);
        anyhow::bail!(
            "the KV cache does not fit --kv-memory: {slots} x {max_len} tokens{sharing} at {} each {null}take {}, but \
             it is {have}: {} are missing. Reduce the number of tokens, use a smaller --kv-dtype, or increase \
             --kv-memory",
            Bytes(kv.spec.bytes_per_token()),
            Bytes(needed),
            Bytes(needed.saturating_sub(have.0)),
        );
    }

    /// Maximum number of tokens of one sequence within `--kv-memory`; `None` without it.
    ///
    /// # Errors
    /// A budget that holds no block.
    pub fn longest(&self, config: &ModelConfig, rt: &Runtime) -> anyhow::Result<Option<usize>> {
        let Some(memory) = self.memory.kv_memory else { return Ok(None) };
        let spec = self.spec(config, rt)?;
        Ok(Some(match self.state {
            StateKind::Paged => Plan::new(&spec, memory, 1)?.tokens(),
            StateKind::Contiguous => {
                let tokens = memory.bytes().0 / spec.bytes_per_token().max(1);
                usize::try_from(tokens).unwrap_or(usize::MAX) / TILE * TILE
            }
        }))
    }

    /// Memory of tokens and blocks, in the requested data type.
    pub fn spec(&self, config: &ModelConfig, rt: &Runtime) -> anyhow::Result<KvSpec> {
        let dtype = self.memory.kv_dtype.0.unwrap_or(rt.activation_dtype());
        Ok(KvSpec::from_config(config, dtype, self.blocks.block_size)?)
    }
}

impl KvReport {
    /// Reports an engine's pool, for one of its requests.
    pub fn of_pool(spec: &KvSpec, num_blocks: usize, cached_tokens: usize) -> Self {
        Self {
            state: StateKind::Paged,
            dtype: name(spec.dtype()),
            block_size: Some(spec.block_size()),
            num_blocks: Some(num_blocks),
            bytes: spec.pool_bytes(num_blocks),
            bytes_per_token: spec.bytes_per_token(),
            cached_tokens,
        }
    }
}

impl Kv {
    /// Allocates the memory, for steps of at most `max_step_tokens` tokens.
    ///
    /// # Errors
    /// Out of memory.
    pub fn make(
        &self,
        config: &ModelConfig,
        max_step_tokens: usize,
    ) -> anyhow::Result<Box<dyn SequenceState>> {
        Ok(match self.state {
            StateKind::Contiguous => {
                let (slots, max_len, dtype) = (self.slots, self.max_len, self.spec.dtype());
                Box::new(ContiguousState::new_on(self.device, config, slots, max_len, dtype)?)
            }
            StateKind::Paged => Box::new(self.paged(config, max_step_tokens)?),
        })
    }

    /// Allocates the memory as blocks.
    ///
    /// # Errors
    /// Out of memory.
    pub fn paged(
        &self,
        config: &ModelConfig,
        max_step_tokens: usize,
    ) -> anyhow::Result<PagedState> {
        let mut options =
            PagedOptions::new(self.slots, self.max_len, self.spec.block_size(), self.spec.dtype());
        options.max_step_tokens = max_step_tokens;
        options.namespace = config.architecture.clone();
        if let Some(plan) = &self.plan {
            options.num_blocks = plan.num_blocks();
        }
        let blocks = options.num_blocks;
        let state = PagedState::new_on(self.device, config, options);
        state.with_context(|| format!("{blocks} blocks of {} tokens", self.spec.block_size()))
    }

    /// Options of an engine with this memory. It runs all of its sequences at once.
    pub fn engine(&self, speculation: &SpeculationOptions) -> EngineOptions {
        // Nothing is written to the null block: contiguous memory does not count it, and the system does not back it.
        let null = match self.state {
            StateKind::Paged => 0,
            StateKind::Contiguous => self.spec.bytes_per_block(),
        };
        EngineOptions {
            max_num_seqs: self.slots,
            max_num_batched_tokens: PREFILL_CHUNK.max(self.slots),
            max_model_len: Some(self.max_len),
            block_size: self.spec.block_size(),
            kv_dtype: Some(self.spec.dtype()),
            kv_memory: Some(Budget::exact(self.bytes().saturating_add(null))),
            enable_prefix_caching: self.state == StateKind::Paged,
            // Capturing steps pays off for long-running engines only.
            eager: true,
            speculative: speculation.speculative_config.clone(),
            ..EngineOptions::default()
        }
    }

    /// Allocated memory, in bytes.
    pub fn bytes(&self) -> u64 {
        match &self.plan {
            Some(plan) => plan.bytes().0,
            // A region consists of whole tiles.
            None => {
                let tokens = self.max_len.next_multiple_of(TILE).saturating_mul(self.slots);
                self.spec.bytes_per_token().saturating_mul(tokens as u64)
            }
        }
    }

    /// Memory of one token, in bytes.
    pub fn bytes_per_token(&self) -> u64 {
        self.spec.bytes_per_token()
    }

    /// Reports the KV cache for `--json`.
    pub fn report(&self, cached_tokens: usize) -> KvReport {
        let paged = self.state == StateKind::Paged;
        KvReport {
            state: self.state,
            dtype: name(self.spec.dtype()),
            block_size: paged.then_some(self.spec.block_size()),
            num_blocks: self.plan.as_ref().filter(|_| paged).map(Plan::num_blocks),
            bytes: self.bytes(),
            bytes_per_token: self.bytes_per_token(),
            cached_tokens,
        }
    }

    /// Prints the plan of the memory, as progress.
    pub fn explain(&self, args: &KvArgs, context: &Context) {
        context.say(format_args!("KV cache: {self}"));
        let Some(plan) = &self.plan else { return };
        if !context.verbose {
            return;
        }
        // The first line is the value of --kv-memory, which may not be given.
        let from = usize::from(args.memory.kv_memory.is_none());
        for line in plan.to_string().lines().skip(from) {
            context.say(format_args!("  {line}"));
        }
    }
}

impl fmt::Display for Kv {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (bytes, dtype) = (Bytes(self.bytes()), name(self.spec.dtype()));
        match self.plan.as_ref().filter(|_| self.state == StateKind::Paged) {
            Some(plan) => {
                let (blocks, size) = (plan.num_blocks(), self.spec.block_size());
                let tokens = count(size, "token");
                write!(f, "paged, {blocks} blocks of {tokens} in {dtype}, {bytes}")
            }
            None => {
                let (slots, len) = (self.slots, self.max_len);
                write!(f, "contiguous, {slots} x {len} tokens in {dtype}, {bytes}")
            }
        }
    }
}

/// Name of a data type, as in `--kv-dtype`.
pub fn name(dtype: DType) -> &'static str {
    match dtype {
        DType::F32 => "f32",
        DType::BF16 => "bf16",
        DType::F8E4M3 => "fp8",
        other => other.as_str(),
    }
}
