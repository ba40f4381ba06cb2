//! The flags of `strata serve`. Names are vLLM's where it has the thing, or its name is an alias.
//!
//! A flag that is on or off takes `--flag`, `--flag=false` and, as vLLM has it, `--no-flag`.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::ArgAction;
use clap::builder::BoolishValueParser;
use l1_tensor::{DType, DeviceRequest, PrecisionRequest};
use l3_paged_kv::sizing::{Budget, Bytes};
use l5_scheduler::PolicyKind;

use super::values;

/// What is served.
#[derive(Debug, Default, clap::Args)]
#[command(next_help_heading = "Model")]
pub struct ModelFlags {
    /// smollm2, a hub id (org/name), a Hugging Face directory, or a .gguf file
    #[arg(short, long, value_name = "MODEL", default_value = "smollm2")]
    pub model: String,
    /// The names that requests may call the model by; the first is the one in responses [default: the id on the hub,
    /// or the name of the directory or file]
    #[arg(long, value_name = "NAME", num_args = 1..)]
    pub served_model_name: Vec<String>,
    /// The chat template: a file, or the Jinja itself [default: the model's]
    #[arg(long, value_name = "FILE")]
    pub chat_template: Option<String>,
    /// How the model writes calls of tools: auto (told from its chat template), hermes, llama3_json or none
    #[arg(long, alias = "tool-parser", value_name = "FORMAT", default_value = "auto", value_parser = values::tool_parser)]
    pub tool_call_parser: values::ToolParser,
    /// Tools may be called where the client leaves it to the model: always so here
    #[arg(long, hide = true, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_parser = values::always)]
    pub enable_auto_tool_choice: Option<bool>,
    /// In guided JSON, an object whose schema declares properties has no others, unless the schema says
    /// additionalProperties. A small model left to invent properties does not stop
    #[arg(long, alias = "structured-outputs-config.disable_additional_properties", num_args = 0..=1, require_equals = true, default_value = "true", default_missing_value = "true", action = ArgAction::Set, value_name = "ON", hide_possible_values = true, value_parser = BoolishValueParser::new(), overrides_with = "no_disable_additional_properties")]
    pub disable_additional_properties: bool,
    /// --disable-additional-properties=false
    #[arg(
        long,
        alias = "no-structured-outputs-config.disable_additional_properties",
        hide = true,
        overrides_with = "disable_additional_properties"
    )]
    pub no_disable_additional_properties: bool,
    /// How the model sets its thoughts apart: auto (told from its chat template), think (<think> tags) or none
    #[arg(long, value_name = "FORMAT", default_value = "auto", value_parser = values::reasoning_parser)]
    pub reasoning_parser: values::ReasoningChoice,
    /// Where sampling defaults come from: auto (the model's generation_config.json), vllm (none), or a directory with such
    /// a file
    #[arg(long, value_name = "FROM", default_value = "auto")]
    pub generation_config: String,
    /// Sampling defaults that go before those, such as {"temperature": 0.5}
    #[arg(long, value_name = "JSON")]
    pub override_generation_config: Option<String>,
}

/// Where it listens, and to whom.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Server")]
pub struct ServerFlags {
    /// Address to listen on; 0.0.0.0 is every address of this machine
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1", value_parser = values::host)]
    pub host: IpAddr,
    /// Port to listen on; 0 takes any that is free
    #[arg(long, value_name = "PORT", default_value_t = 8000)]
    pub port: u16,
    /// Keys of which clients must show one, as `Authorization: Bearer KEY` [default: everybody may ask]
    #[arg(long, value_name = "KEY", num_args = 1.., value_parser = values::api_key)]
    pub api_key: Vec<String>,
    /// With keys: let requests of one key find the cached blocks of another's. Who sees `cached_tokens` can then confirm
    /// guesses of what others asked
    #[arg(long, num_args = 0..=1, require_equals = true, default_value = "false", default_missing_value = "true", action = ArgAction::Set, value_name = "ON", hide_possible_values = true, value_parser = BoolishValueParser::new())]
    pub share_prefix_cache: bool,
    /// Names beside localhost that clients may call a server by which listens on loopback, as behind a reverse proxy; *
    /// for any [default: none, which keeps out pages whose name resolves to this machine]
    #[arg(long, value_name = "NAME", num_args = 1..)]
    pub allowed_hosts: Vec<String>,
    /// Origins whose pages may ask from a browser; * for all [default: none]
    #[arg(long, value_name = "ORIGIN", num_args = 1..)]
    pub allowed_origins: Vec<String>,
    /// A line of JSON for each request, at the end of this file; - is stderr
    #[arg(long, value_name = "FILE")]
    pub access_log: Option<PathBuf>,
    /// How long requests that are under way may go on after SIGTERM or SIGINT
    #[arg(long, alias = "shutdown-timeout", value_name = "SECONDS", default_value = "30", value_parser = values::duration)]
    pub shutdown_grace: Duration,
}

/// What nobody may exceed.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Limits")]
pub struct LimitFlags {
    /// Maximum number of requests that wait for a seat or for blocks; more are told to come back
    #[arg(long, aliases = ["max-num-queued-reqs", "max-queue-size"], value_name = "N", default_value = "1024", value_parser = values::count)]
    pub max_num_waiting: usize,
    /// Maximum number of prompt tokens that wait together; more are told to come back; 0 for any number
    #[arg(long, value_name = "N", default_value = "1048576", value_parser = values::any_count)]
    pub max_num_queued_tokens: usize,
    /// Maximum number of completion tokens of a chat that does not say how many; 0 for what the context leaves
    #[arg(long, value_name = "N", default_value = "4096", value_parser = values::any_count)]
    pub default_chat_max_tokens: usize,
    /// The lowest `priority`, which is the most urgent, that clients may ask for: lower ones count as this [default: any]
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub min_client_priority: Option<i64>,
    /// The longest that a request may take, from its arrival to the end of its response; 0 for any time
    #[arg(long, value_name = "SECONDS", default_value = "0", value_parser = values::duration)]
    pub request_timeout: Duration,
    /// The largest body of a request
    #[arg(long, value_name = "SIZE", default_value = "16MiB")]
    pub max_body_size: Bytes,
    /// The most connections at once; more wait until one ends
    #[arg(long, value_name = "N", default_value = "4096", value_parser = values::count)]
    pub max_connections: usize,
    /// The most answers to one request: n, or prompts times n
    #[arg(long, value_name = "N", default_value = "128", value_parser = values::count)]
    pub max_num_answers: usize,
    /// The most likely tokens that are told beside each
    #[arg(long, value_name = "N", default_value = "20", value_parser = values::any_count)]
    pub max_logprobs: usize,
}

/// What it runs on.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Machine")]
pub struct MachineFlags {
    /// auto, cpu, cuda or cuda:N
    #[arg(long, value_name = "DEVICE", default_value = "auto")]
    pub device: DeviceRequest,
    /// How activations enter a matmul: auto, f32 (exact) or bf16 (fast)
    #[arg(long, alias = "dtype", value_name = "PRECISION", default_value = "auto", value_parser = values::precision)]
    pub precision: PrecisionRequest,
    /// Threads that work on one forward pass [default: one for each core]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: Option<u16>,
    /// On CUDA: an answer's bits do not depend on the requests beside it, where that is slower. A CPU keeps this always
    #[arg(long, num_args = 0..=1, require_equals = true, default_value = "false", default_missing_value = "true", action = ArgAction::Set, value_name = "ON", hide_possible_values = true, value_parser = BoolishValueParser::new())]
    pub batch_invariant: bool,
    /// On CUDA: launch every kernel of every step by itself, instead of capturing steps that only decode
    #[arg(long, alias = "enforce-eager", num_args = 0..=1, require_equals = true, default_value = "false", default_missing_value = "true", action = ArgAction::Set, value_name = "ON", hide_possible_values = true, value_parser = BoolishValueParser::new())]
    pub eager: bool,
    /// One machine, one process: vLLM's ways to use several, which are accepted where they ask for one
    #[arg(long, hide = true, value_name = "N", aliases = ["pipeline-parallel-size", "data-parallel-size", "api-server-count"], value_parser = values::only_one)]
    pub tensor_parallel_size: Option<u8>,
}

/// Memory for keys and values.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "KV cache")]
pub struct KvFlags {
    /// Memory for keys and values, such as 512MiB or 2GiB [default: what --max-num-seqs requests of full length need, at
    /// most 4 GiB; on a GPU four fifths of what is free]
    #[arg(
        long,
        alias = "kv-cache-memory-bytes",
        value_name = "SIZE",
        conflicts_with = "memory_utilization"
    )]
    pub kv_memory: Option<Budget>,
    /// Take for keys and values what the model leaves of this share of the machine's memory (or the GPU's)
    #[arg(long, alias = "gpu-memory-utilization", value_name = "SHARE", value_parser = values::share)]
    pub memory_utilization: Option<f64>,
    /// Tokens in a block, a power of two
    #[arg(long, value_name = "N", default_value = "16", value_parser = values::power_of_two)]
    pub block_size: usize,
    /// How keys and values are stored: auto (as activations are), bf16, f32, or fp8 (half the memory of bf16)
    #[arg(long, alias = "kv-cache-dtype", value_name = "DTYPE", default_value = "auto", value_parser = values::kv_dtype)]
    pub kv_dtype: values::KvDtype,
    /// Find full blocks again by what they hold, so that a beginning that was computed is not computed again
    #[arg(long, num_args = 0..=1, require_equals = true, default_value = "true", default_missing_value = "true", action = ArgAction::Set, value_name = "ON", hide_possible_values = true, value_parser = BoolishValueParser::new(), overrides_with = "no_enable_prefix_caching")]
    pub enable_prefix_caching: bool,
    /// --enable-prefix-caching=false
    #[arg(
        long,
        alias = "no-prefix-caching",
        hide = true,
        overrides_with = "enable_prefix_caching"
    )]
    pub no_enable_prefix_caching: bool,
}

/// Who runs when.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Scheduler")]
pub struct SchedulerFlags {
    /// The most requests that run at once [default: 128 on a CPU, 256 on a GPU]
    #[arg(long, value_name = "N", value_parser = values::count)]
    pub max_num_seqs: Option<usize>,
    /// The most tokens of one step, all requests together [default: 256 on a CPU, 2048 on a GPU]
    #[arg(long, value_name = "N", value_parser = values::count)]
    pub max_num_batched_tokens: Option<usize>,
    /// The most tokens of a request, prompt and answer together: 4096, 4k (4,000), 4K (4,096)
    /// [default: what model and memory allow]
    #[arg(long, value_name = "N", value_parser = values::model_len)]
    pub max_model_len: Option<values::ModelLen>,
    /// The most tokens of one step that a long prompt may take while others are there; 0 for as many as there are
    #[arg(long, value_name = "N", default_value = "0", value_parser = values::any_count)]
    pub long_prefill_token_threshold: usize,
    /// Who goes first: fcfs, priority or strict-priority
    #[arg(long, alias = "scheduling-policy", value_name = "POLICY", default_value = "fcfs")]
    pub policy: PolicyKind,
    /// Compute a long prompt in pieces, so that others go on beside it
    #[arg(long, num_args = 0..=1, require_equals = true, default_value = "true", default_missing_value = "true", action = ArgAction::Set, value_name = "ON", hide_possible_values = true, value_parser = BoolishValueParser::new(), overrides_with = "no_enable_chunked_prefill")]
    pub enable_chunked_prefill: bool,
    /// --enable-chunked-prefill=false
    #[arg(long, hide = true, overrides_with = "enable_chunked_prefill")]
    pub no_enable_chunked_prefill: bool,
    /// Record every step, for `strata trace view`
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
}

/// All of them.
#[derive(Debug, clap::Args)]
pub struct Flags {
    /// As --model
    #[arg(value_name = "MODEL", conflicts_with = "model")]
    pub which: Option<String>,
    /// Read flags from this file: TOML, with their names as keys. See deploy/strata.toml
    #[arg(long, value_name = "FILE.toml")]
    pub config: Option<PathBuf>,
    /// Print what all flags come to, as such a file with where each is from, and end
    #[arg(long)]
    pub print_config: bool,
    #[command(flatten)]
    pub model: ModelFlags,
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
}

impl KvFlags {
    /// How keys and values are stored; `None`: as activations are.
    pub fn dtype(&self) -> Option<DType> {
        self.kv_dtype.0
    }
}

impl Flags {
    /// What `--model` or the argument says.
    pub fn model_name(&self) -> &str {
        self.which.as_deref().unwrap_or(&self.model.model)
    }

    /// Whether objects of guided JSON have declared properties only.
    pub fn disable_additional_properties(&self) -> bool {
        self.model.disable_additional_properties && !self.model.no_disable_additional_properties
    }

    /// Whether full blocks are found again.
    pub fn prefix_caching(&self) -> bool {
        self.kv.enable_prefix_caching && !self.kv.no_enable_prefix_caching
    }

    /// Whether a prompt may be computed in pieces.
    pub fn chunked_prefill(&self) -> bool {
        self.scheduler.enable_chunked_prefill && !self.scheduler.no_enable_chunked_prefill
    }
}
