//! The flags of `strata serve`. Names are vLLM's where vLLM has the option, or vLLM's name is an alias.
//!
//! A flag that is on or off takes `--flag`, `--flag=false` and, as in vLLM, `--no-flag`. The engine's options are
//! defined in `cli/options`.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use clap::Arg;
use l3_paged_kv::sizing::Bytes;
use l3_paged_kv::tier::RedisOptions;
use l5_scheduler::tiers::TierOptions;

use super::values;
use crate::cli::adapter::RankOptions;
use crate::cli::args::{ModelArgs, RuntimeArgs};
use crate::cli::options::values::{any_count, count, share};
use crate::cli::options::{
    BlockOptions, CaptureOptions, KvMemoryOptions, PrefixCachingOptions, SchedulerOptions,
    SpeculationOptions, Switch, TraceOptions, defaults_to,
};

/// The model and its formats.
#[derive(Debug, Default, clap::Args)]
#[command(next_help_heading = "Model")]
pub struct ModelFlags {
    #[command(flatten)]
    pub source: ModelArgs,
    /// Names of the model that requests may use; responses carry the first [default: the id on the hub, or the name of
    /// the directory or file]
    #[arg(long, value_name = "NAME", num_args = 1..)]
    pub served_model_name: Vec<String>,
    /// Chat template: a file, or a Jinja template itself [default: the model's]
    #[arg(long, value_name = "FILE")]
    pub chat_template: Option<String>,
    /// Format of the model's tool calls: auto (detected from the chat template), hermes, llama3_json or none
    #[arg(long, alias = "tool-parser", value_name = "FORMAT", default_value = "auto")]
    #[arg(value_parser = values::tool_parser)]
    pub tool_call_parser: values::ToolParser,
    /// Whether the model may decide to call tools: always on
    #[arg(long, hide = true, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    #[arg(value_parser = values::always)]
    pub enable_auto_tool_choice: Option<bool>,
    /// In guided JSON, forbid properties that an object's schema does not declare, unless the schema sets
    /// additionalProperties. A small model that may invent properties often does not stop
    #[arg(
        long,
        alias = "structured-outputs-config.disable_additional_properties",
        switch("true"),
        overrides_with = "no_disable_additional_properties"
    )]
    pub disable_additional_properties: bool,
    /// --disable-additional-properties=false
    #[arg(
        long,
        alias = "no-structured-outputs-config.disable_additional_properties",
        hide = true,
        overrides_with = "disable_additional_properties"
    )]
    pub no_disable_additional_properties: bool,
    /// Format of the model's reasoning: auto (detected from the chat template), think (<think> tags) or none
    #[arg(long, value_name = "FORMAT", default_value = "auto", value_parser = values::reasoning_parser)]
    pub reasoning_parser: values::ReasoningChoice,
    /// Source of sampling defaults: auto (the model's generation_config.json), vllm (none), or a directory that
    /// contains a generation_config.json
    #[arg(long, value_name = "FROM", default_value = "auto")]
    pub generation_config: String,
    /// Sampling defaults that override those of --generation-config, such as {"temperature": 0.5}
    #[arg(long, value_name = "JSON")]
    pub override_generation_config: Option<String>,
}

/// LoRA adapters of the model.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "LoRA adapters")]
pub struct LoraFlags {
    /// Take LoRA adapters: requests name one as their `model`, and POST /v1/load_lora_adapter and
    /// /v1/unload_lora_adapter load and unload them from directories of this machine. On with --lora-modules
    #[arg(long, switch("false"))]
    pub enable_lora: bool,
    /// LoRA adapters to load at the start: name=path of a directory as PEFT writes it, or {"name": .., "path": ..}
    /// (not in an environment variable). It takes all values that follow, so write MODEL before it
    #[arg(long, value_name = "NAME=PATH", num_args = 1.., value_parser = values::lora_module)]
    pub lora_modules: Vec<values::LoraModule>,
    #[command(flatten)]
    pub rank: RankOptions,
    /// Maximum number of LoRA adapters in memory. For one more, that one is evicted which was used least recently and
    /// no request runs with; it is read again when it is needed
    #[arg(long, value_name = "N", default_value = "16", value_parser = count)]
    pub max_cpu_loras: usize,
    /// Maximum time that a request or a load waits for room for its LoRA adapter, while requests use all that may be in
    /// memory or others are read; 0 to refuse it at once. After half of it, requests for adapters in memory queue
    /// behind
    #[arg(long, value_name = "SECONDS", default_value = "30", value_parser = values::duration)]
    pub max_lora_wait: Duration,
}

impl LoraFlags {
    /// Whether adapters are taken.
    pub fn on(&self) -> bool {
        self.enable_lora || !self.lora_modules.is_empty()
    }

    /// Maximum rank of adapters. `None`: none is taken.
    pub fn max_rank(&self) -> Option<usize> {
        self.on().then_some(self.rank.max_lora_rank)
    }
}

/// The address, and access to it.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Server")]
pub struct ServerFlags {
    /// IP address to listen on; 0.0.0.0 for all addresses of this machine
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1", value_parser = values::host)]
    pub host: IpAddr,
    /// Port to listen on; 0 for any free port
    #[arg(long, value_name = "PORT", default_value_t = 8000)]
    pub port: u16,
    /// API keys; a request must carry one as `Authorization: Bearer KEY` [default: no key is required]
    #[arg(long, value_name = "KEY", num_args = 1.., value_parser = values::api_key)]
    pub api_key: Vec<String>,
    /// Share the prefix cache between API keys. `cached_tokens` then lets the owner of one key test guesses about the
    /// prompts of another
    #[arg(long, switch("false"))]
    pub share_prefix_cache: bool,
    /// Host names, beside localhost, that a server on a loopback address accepts, as behind a reverse proxy; * for any
    /// [default: none, which rejects web pages whose name resolves to this machine]
    #[arg(long, value_name = "NAME", num_args = 1..)]
    pub allowed_hosts: Vec<String>,
    /// Origins whose web pages may send requests (CORS); * for all [default: none]
    #[arg(long, value_name = "ORIGIN", num_args = 1..)]
    pub allowed_origins: Vec<String>,
    /// Append one line of JSON for each request to this file; - for stderr
    #[arg(long, value_name = "FILE")]
    pub access_log: Option<PathBuf>,
    /// Directory in which service levels (`/strata/slo`), the freshness of specialists and what operators set for them
    /// survive a restart [default: none, they begin anew]
    #[arg(long, value_name = "DIR")]
    pub state_dir: Option<PathBuf>,
    /// Directory for the calibration stream of an ensemble: a record of each routed request, as `strata router tune`
    /// reads it [default: none, nothing is recorded]
    #[arg(long, value_name = "DIR")]
    pub calibration_dir: Option<PathBuf>,
    /// Store prompts in the calibration stream. They are what clients send; without this flag records have digests only
    #[arg(long, switch("false"))]
    pub store_prompts: bool,
    /// Time that running requests have to finish after SIGTERM or SIGINT
    #[arg(long, alias = "shutdown-timeout", value_name = "SECONDS", default_value = "30")]
    #[arg(value_parser = values::duration)]
    pub shutdown_grace: Duration,
}

/// Limits of requests and connections.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Limits")]
pub struct LimitFlags {
    /// Maximum number of waiting requests; more are rejected with status 429
    #[arg(long)]
    #[arg(aliases = ["max-num-queued-reqs", "max-queue-size"], value_name = "N")]
    #[arg(default_value = "1024", value_parser = count)]
    pub max_num_waiting: usize,
    /// Maximum number of prompt tokens of all waiting requests; more are rejected with status 429; 0 for no limit
    #[arg(long, value_name = "N", default_value = "1048576", value_parser = any_count)]
    pub max_num_queued_tokens: usize,
    /// Maximum number of completion tokens of a chat request that sets no limit; 0 for what the context leaves
    #[arg(long, value_name = "N", default_value = "4096", value_parser = any_count)]
    pub default_chat_max_tokens: usize,
    /// Lowest (most urgent) `priority` that clients may request; lower values are raised to it [default: any]
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub min_client_priority: Option<i64>,
    /// Maximum time of a request, from its arrival to the end of its response; 0 for no limit
    #[arg(long, value_name = "SECONDS", default_value = "0", value_parser = values::duration)]
    pub request_timeout: Duration,
    /// Maximum size of a request body
    #[arg(long, value_name = "SIZE", default_value = "16MiB")]
    pub max_body_size: Bytes,
    /// Maximum number of open connections; more wait until one closes
    #[arg(long, value_name = "N", default_value = "4096", value_parser = count)]
    pub max_connections: usize,
    /// Maximum number of choices of one request: prompts times `n`
    #[arg(long, value_name = "N", default_value = "128", value_parser = count)]
    pub max_num_answers: usize,
    /// Maximum number of log probabilities that a request may ask for at each token
    #[arg(long, value_name = "N", default_value = "20", value_parser = any_count)]
    pub max_logprobs: usize,
}

/// The machine.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Machine")]
pub struct MachineFlags {
    #[command(flatten)]
    pub runtime: RuntimeArgs,
    #[command(flatten)]
    pub capture: CaptureOptions,
    /// vLLM's ways to use several devices or processes, accepted where they ask for one
    #[arg(long, hide = true, value_name = "N")]
    #[arg(aliases = ["pipeline-parallel-size", "data-parallel-size", "api-server-count"])]
    #[arg(value_parser = values::only_one)]
    pub tensor_parallel_size: Option<u8>,
}

/// The KV cache.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "KV cache")]
pub struct KvFlags {
    #[command(flatten)]
    pub memory: KvMemoryOptions,
    /// Use for the KV cache what the model leaves of this share of the machine's memory (of the GPU's on CUDA), above 0
    /// and at most 1
    #[arg(long, alias = "gpu-memory-utilization", value_name = "SHARE")]
    #[arg(conflicts_with = "kv_memory", value_parser = share)]
    pub memory_utilization: Option<f64>,
    #[command(flatten)]
    pub blocks: BlockOptions,
    #[command(flatten)]
    pub prefix_caching: PrefixCachingOptions,
    #[command(flatten)]
    pub tiers: TierFlags,
}

/// Memories behind the pool. A policy that stores blocks uses them: lmcache stores those of every finished request.
#[derive(Debug, clap::Args)]
pub struct TierFlags {
    /// Memory for keys and values that the pool would evict, such as 4GiB [default: none]
    #[arg(long, value_name = "SIZE")]
    pub kv_tier_dram: Option<Bytes>,
    /// Directory for keys and values that the pool would evict; they survive a restart [default: none]
    #[arg(long, value_name = "DIR")]
    pub kv_tier_disk: Option<PathBuf>,
    /// Maximum size of all files in --kv-tier-disk
    #[arg(long, value_name = "SIZE", default_value = "16GiB")]
    pub kv_tier_disk_size: Bytes,
    /// Address of a Redis or Valkey server for keys and values, which several engines may share [default: none]
    #[arg(long, value_name = "HOST:PORT", value_parser = values::server)]
    pub kv_tier_redis: Option<SocketAddr>,
    /// Number of tokens that a tier keeps as one chunk, a multiple of --block-size. Tokens behind the last whole chunk of a
    /// request are not stored
    #[arg(long, value_name = "N", default_value = "256", value_parser = count)]
    pub kv_tier_chunk: usize,
    /// vLLM's configuration of a connector, as JSON: LMCacheConnectorV1, with the variables LMCACHE_*, or
    /// OffloadingConnector. It sets the flags above and --policy lmcache
    #[arg(long, value_name = "JSON")]
    pub kv_transfer_config: Option<String>,
}

impl TierFlags {
    /// Options of the engine's tiers.
    pub fn options(&self) -> TierOptions {
        TierOptions {
            chunk_tokens: self.kv_tier_chunk,
            dram: self.kv_tier_dram.map_or(0, |size| size.0),
            disk: self.kv_tier_disk.clone().map(|dir| (dir, self.kv_tier_disk_size.0)),
            redis: self.kv_tier_redis.map(RedisOptions::new),
            ..TierOptions::default()
        }
    }
}

/// The scheduler.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Scheduler")]
pub struct SchedulerFlags {
    #[command(flatten)]
    pub limits: SchedulerOptions,
    #[command(flatten)]
    pub speculation: SpeculationOptions,
    #[command(flatten)]
    pub trace: TraceOptions,
    /// Write which KV blocks were held for agents' jobs, for how long and of what use, to this file: JSON, replaced every 10
    /// seconds and at the end
    #[arg(long, value_name = "FILE")]
    pub job_history: Option<PathBuf>,
}

/// The check whether C++ code in responses compiles.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Compile check")]
pub struct CompileCheckFlags {
    /// Check whether C++ code in responses compiles, off the request path and in a sandbox: off, g++, clang++ or the
    /// path of such a compiler. Linux only
    #[arg(long, value_name = "COMPILER", default_value = "off", value_parser = values::compiler)]
    pub compile_check: values::CheckedBy,
    /// Share of the responses that is checked, from 0 to 1
    #[arg(long, value_name = "SHARE", default_value = "0.05", value_parser = values::fraction)]
    pub compile_check_fraction: f64,
}

/// States the defaults that the server computes.
fn defaults(arg: Arg) -> Arg {
    match arg.get_id().as_str() {
        "max_num_seqs" => defaults_to(arg, "128 on a CPU, 256 on a GPU"),
        "max_num_batched_tokens" => defaults_to(arg, "256 on a CPU, 2048 on a GPU"),
        "max_model_len" => defaults_to(arg, "what model and memory allow"),
        "kv_memory" => defaults_to(
            arg,
            "what --max-num-seqs requests of full length need, at most 4 GiB; on a GPU four fifths of what is free",
        ),
        _ => arg,
    }
}

/// All flags of `strata serve`.
#[derive(Debug, clap::Args)]
#[command(mut_args(defaults))]
pub struct Flags {
    /// The model, as with --model
    #[arg(value_name = "MODEL", conflicts_with = "model")]
    pub which: Option<String>,
    /// Configuration file: TOML whose keys are the names of flags, as in deploy/strata.toml
    #[arg(long, value_name = "FILE.toml")]
    pub config: Option<PathBuf>,
    /// Print the resulting configuration with the source of each value, and exit
    #[arg(long)]
    pub print_config: bool,
    /// Serve an ensemble of specialists behind a router: a TOML file that lists them, as deploy/ensemble-demo.toml, or
    /// demo for that file, whose specialists have the default model. The file has the models, kv_memory, block_size and
    /// policy, so their flags are refused beside it; --max-num-seqs, --max-num-batched-tokens and --max-model-len are
    /// defaults of specialists that do not set them. --trace then also records the way of each request to its specialist
    #[arg(long, value_name = "FILE.toml")]
    pub ensemble: Option<String>,
    #[command(flatten)]
    pub model: ModelFlags,
    #[command(flatten)]
    pub lora: LoraFlags,
    #[command(flatten)]
    pub server: ServerFlags,
    #[command(flatten)]
    pub limits: LimitFlags,
    #[command(flatten)]
    pub machine: MachineFlags,
    #[command(flatten)]
    pub kv: KvFlags,
    #[command(flatten)]
    pub scheduler: SchedulerFlags,
    #[command(flatten)]
    pub compile_check: CompileCheckFlags,
}

impl Flags {
    /// The model's name, from `--model` or the argument.
    pub fn model_name(&self) -> &str {
        self.which.as_deref().unwrap_or(&self.model.source.model)
    }

    /// Whether guided JSON forbids properties that a schema does not declare.
    pub fn disable_additional_properties(&self) -> bool {
        self.model.disable_additional_properties && !self.model.no_disable_additional_properties
    }
}
