//! Where keys and values are kept, and how much memory that takes: `--state`, `--block-size`, `--kv-dtype` and
//! `--kv-memory`.

use std::fmt;
use std::str::FromStr;

use anyhow::Context as _;
use l1_tensor::ops::TILE;
use l1_tensor::{DType, Device, Runtime};
use l2_model::{ContiguousState, ModelConfig, SequenceState};
use l3_paged_kv::sizing::{Budget, Bytes, KvSpec, Plan};
use l3_paged_kv::{PagedOptions, PagedState};
use serde::Serialize;

use super::context::Context;

/// How keys and values are kept.
#[derive(Debug, Clone, clap::Args)]
pub struct KvArgs {
    /// Where keys and values are kept: paged (in numbered blocks) or contiguous (one run of memory for each sequence)
    #[arg(long, value_name = "STATE", default_value = "paged")]
    pub state: StateKind,
    /// Tokens in a block of the paged state, a power of two
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = power_of_two)]
    pub block_size: usize,
    /// How keys and values are stored: auto (f32 under --precision f32, else bf16), bf16, f32, or fp8 (8 bits: half
    /// the memory of bf16, each number to 4 bits of precision)
    #[arg(long, value_name = "DTYPE", default_value = "auto")]
    pub kv_dtype: KvDtype,
    /// Memory for keys and values, such as 512MiB or 2GiB [default: what the command needs]
    #[arg(long, value_name = "SIZE")]
    pub kv_memory: Option<Budget>,
}

/// Which [`SequenceState`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum StateKind {
    /// One run of memory for each sequence.
    Contiguous,
    /// Blocks of one pool.
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

/// The dtype that was asked for; `None` is `auto`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KvDtype(Option<DType>);

impl FromStr for KvDtype {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        match s {
            "auto" => Ok(Self(None)),
            "bf16" => Ok(Self(Some(DType::BF16))),
            "f32" => Ok(Self(Some(DType::F32))),
            "fp8" => Ok(Self(Some(DType::F8E4M3))),
            _ => {
                Err(format!("`{s}` is not a dtype of keys and values: use auto, bf16, f32 or fp8"))
            }
        }
    }
}

fn power_of_two(s: &str) -> Result<usize, String> {
    match s.parse::<usize>() {
        // Tables and slots are 32-bit numbers.
        Ok(n) if n.is_power_of_two() && n <= 1 << 30 => Ok(n),
        Ok(_) => Err("must be a power of two: 1, 2, 4, 8, 16, ..".into()),
        Err(e) => Err(e.to_string()),
    }
}

/// What the options come to for one model and so many sequences.
#[derive(Debug, Clone)]
pub struct Kv {
    state: StateKind,
    /// Whose memory it is.
    device: Device,
    /// Its dtype and its blocks.
    spec: KvSpec,
    /// Sequences at once.
    slots: usize,
    /// The most tokens of each.
    pub max_len: usize,
    /// How the pool came to its size; contiguous memory needs no plan.
    plan: Option<Plan>,
}

/// What `--json` says about it.
#[derive(Debug, Serialize)]
pub struct KvReport {
    state: StateKind,
    /// As `--kv-dtype` names it.
    dtype: &'static str,
    /// Tokens a block; `null` where there are none.
    block_size: Option<usize>,
    /// Blocks of the pool, the null block included; `null` where there are none.
    num_blocks: Option<usize>,
    /// All memory that is set aside.
    bytes: u64,
    bytes_per_token: u64,
    /// Tokens of the prompt that an earlier sequence had left in the cache.
    cached_tokens: usize,
}

impl KvArgs {
    /// Memory for `slots` sequences of `max_len` tokens at once: as much as they need, or what `--kv-memory` says.
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
        self.plan_sharing(config, rt, slots, max_len, 0)
    }

    /// The same for sequences that begin with the same `prompt` tokens: its full blocks are needed once.
    ///
    /// # Errors
    /// As [`KvArgs::plan`].
    pub fn plan_sharing(
        &self,
        config: &ModelConfig,
        rt: &Runtime,
        slots: usize,
        max_len: usize,
        prompt: usize,
    ) -> anyhow::Result<Kv> {
        let spec = self.spec(config, rt)?;
        let max_len = max_len.clamp(1, config.max_context);
        let (state, device) = (self.state, rt.device());
        let kv = |plan| Kv { state, device, spec: spec.clone(), slots, max_len, plan };
        // The null block, what the sequences share, and what each has of its own. The prompt's last token is fed for every
        // sequence, for its logits, so its block is never shared.
        let each = max_len.div_ceil(self.block_size);
        let shared = (prompt.saturating_sub(1) / self.block_size).min(each);
        let own = (each - shared).saturating_mul(slots);
        let blocks = own.saturating_add(shared).saturating_add(1);
        let needed = match self.state {
            StateKind::Contiguous => kv(None).bytes(),
            StateKind::Paged => spec.pool_bytes(blocks),
        };
        let fits = |memory: Budget| match self.state {
            StateKind::Contiguous => needed <= memory.bytes().0,
            StateKind::Paged => blocks <= spec.blocks_in(memory),
        };
        if let Some(memory) = self.kv_memory.filter(|memory| !fits(*memory)) {
            let null = match self.state {
                StateKind::Paged => "and the null block ",
                StateKind::Contiguous => "",
            };
            let sharing = match self.state {
                StateKind::Paged if shared > 0 && slots > 1 => {
                    format!(", the first {} of them shared,", shared * self.block_size)
                }
                _ => String::new(),
            };
            let have = memory.bytes();
            anyhow::bail!(
                "keys and values do not fit --kv-memory: {slots} x {max_len} tokens{sharing} at {} each {null}take {}, there is room for {have}, so {} are missing; \
                 ask for fewer tokens, store them in fewer bits (--kv-dtype), or give them more memory",
                Bytes(spec.bytes_per_token()),
                Bytes(needed),
                Bytes(needed.saturating_sub(have.0)),
            );
        }
        if self.state == StateKind::Contiguous {
            return Ok(kv(None));
        }
        // One to spare: a sequence that is cut back into a block which others can see goes on in a copy.
        let enough = Budget::exact(spec.pool_bytes(blocks.saturating_add(1)));
        let plan = Plan::new(&spec, self.kv_memory.unwrap_or(enough), max_len)?;
        Ok(kv(Some(plan)))
    }

    /// The most tokens of one sequence that `--kv-memory` holds; `None` without it.
    ///
    /// # Errors
    /// A budget that holds no block.
    pub fn longest(&self, config: &ModelConfig, rt: &Runtime) -> anyhow::Result<Option<usize>> {
        let Some(memory) = self.kv_memory else { return Ok(None) };
        let spec = self.spec(config, rt)?;
        Ok(Some(match self.state {
            // A conversation that is cut back into a full block goes on in a copy of it: one block is to spare.
            StateKind::Paged => {
                let tokens = Plan::new(&spec, memory, 1)?.tokens();
                if tokens > self.block_size { tokens - self.block_size } else { tokens }
            }
            StateKind::Contiguous => {
                let tokens = memory.bytes().0 / spec.bytes_per_token().max(1);
                usize::try_from(tokens).unwrap_or(usize::MAX) / TILE * TILE
            }
        }))
    }

    /// The dtype that was asked for; `None` is `auto`.
    pub fn dtype(&self) -> Option<DType> {
        self.kv_dtype.0
    }

    /// What a token takes, in the dtype that was asked for.
    pub fn spec(&self, config: &ModelConfig, rt: &Runtime) -> anyhow::Result<KvSpec> {
        let dtype = self.kv_dtype.0.unwrap_or(rt.activation_dtype());
        Ok(KvSpec::from_config(config, dtype, self.block_size)?)
    }
}

impl KvReport {
    /// Of an engine's pool, for one of its requests.
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
    /// The memory, for steps of at most `max_step_tokens` tokens.
    ///
    /// # Errors
    /// No memory.
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

    /// The memory as blocks.
    ///
    /// # Errors
    /// No memory.
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

    /// All memory that is set aside.
    pub fn bytes(&self) -> u64 {
        match &self.plan {
            Some(plan) => plan.bytes().0,
            // A run of memory is whole tiles.
            None => {
                let tokens = self.max_len.next_multiple_of(TILE).saturating_mul(self.slots);
                self.spec.bytes_per_token().saturating_mul(tokens as u64)
            }
        }
    }

    /// Bytes that one token takes.
    pub fn bytes_per_token(&self) -> u64 {
        self.spec.bytes_per_token()
    }

    /// For `--json`.
    pub fn report(&self, cached_tokens: usize) -> KvReport {
        let paged = self.state == StateKind::Paged;
        KvReport {
            state: self.state,
            dtype: name(self.spec.dtype()),
            block_size: paged.then_some(self.spec.block_size()),
            num_blocks: self.plan.as_ref().map(Plan::num_blocks),
            bytes: self.bytes(),
            bytes_per_token: self.bytes_per_token(),
            cached_tokens,
        }
    }

    /// Tell a person who watches how the memory came to its size.
    pub fn explain(&self, args: &KvArgs, context: &Context) {
        context.say(format_args!("keys and values: {self}"));
        let Some(plan) = &self.plan else { return };
        if !context.verbose {
            return;
        }
        // The first line is what was given; without --kv-memory nobody gave anything.
        let from = usize::from(args.kv_memory.is_none());
        for line in plan.to_string().lines().skip(from) {
            context.say(format_args!("  {line}"));
        }
    }
}

impl fmt::Display for Kv {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (bytes, dtype) = (Bytes(self.bytes()), name(self.spec.dtype()));
        match &self.plan {
            Some(plan) => {
                let (blocks, size) = (plan.num_blocks(), self.spec.block_size());
                write!(f, "paged, {blocks} blocks of {size} tokens in {dtype}, {bytes}")
            }
            None => {
                let (slots, len) = (self.slots, self.max_len);
                write!(f, "contiguous, {slots} x {len} tokens in {dtype}, {bytes}")
            }
        }
    }
}

/// As `--kv-dtype` names it.
pub fn name(dtype: DType) -> &'static str {
    match dtype {
        DType::F32 => "f32",
        DType::BF16 => "bf16",
        DType::F8E4M3 => "fp8",
        other => other.as_str(),
    }
}
