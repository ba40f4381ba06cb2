//! One specialist of the ensemble file.

use l3_paged_kv::sizing::Budget;
use l5_scheduler::PolicyKind;
use l5_scheduler::speculation::SpeculativeConfig;
use toml::Table;

use super::ConfigError;
use super::reader::Reader;
use super::remote::{self, RemoteConfig};
use super::speculation;
use crate::slo::SloTargets;

/// Maximum number of replicas of a specialist.
const MAX_REPLICAS: usize = 64;

/// Maximum number of bytes of a specialist's name.
const MAX_NAME_BYTES: usize = 64;

/// Maximum number of tokens, requests or steps that a field accepts.
const MAX_COUNT: usize = u32::MAX as usize;

/// A specialist: a model with its own scheduler, KV pool, prefix cache and service-level objectives, which serves one
/// kind of request.
#[derive(Clone, Debug, PartialEq)]
pub struct SpecialistConfig {
    /// Name of the specialist and its lane: in headers, logs, metrics, and as `model` of a request.
    pub name: String,
    /// What the specialist is for, in a few words.
    pub description: String,
    /// Model: a path, or a name as `--model` takes it.
    pub model: String,
    /// Number of engines of this process that serve the specialist; 0 only with `remotes`.
    pub replicas: usize,
    /// Servers that serve the specialist as further replicas.
    pub remotes: Vec<RemoteConfig>,
    /// Number of tokens in a block of its KV cache, a power of two. A prefix is shared in whole blocks, so prompts with
    /// long shared headers gain from small ones.
    pub block_size: usize,
    /// Share of the ensemble's KV memory, from 0 to 1, of all replicas together.
    pub kv_share: f64,
    /// Scheduling policy.
    pub policy: PolicyKind,
    /// Maximum number of running requests of a replica.
    pub max_num_seqs: Option<usize>,
    /// Maximum number of tokens of a step: the longest time for which the lane keeps the machine from its neighbours.
    pub max_num_batched_tokens: Option<usize>,
    /// Maximum number of tokens of a request.
    pub max_model_len: Option<usize>,
    /// Speculation of its engines. `None`: no speculation.
    pub speculative_config: Option<SpeculativeConfig>,
    /// Service-level objectives.
    pub slo: SloTargets,
    /// Name of the specialist that serves requests while this one cannot.
    pub fallback: Option<String>,
    /// Classes of the router that this specialist serves: its name, if the file names none.
    pub classes: Vec<String>,
    /// Declared intents whose requests go to this specialist, whatever they contain.
    pub intents: Vec<String>,
    /// System prompt of chats that have none.
    pub system_prompt: Option<String>,
    /// Sampling of requests that do not say how to sample.
    pub decoding_policy: Option<DecodingPolicy>,
}

/// A named way of sampling, for clients and operators that want to name one instead of numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DecodingPolicy {
    /// The likeliest token: temperature 0.
    Greedy,
    /// Typical sampling: temperature 0.7, `typical_p` 0.95 (Meister et al. 2022, "Locally Typical Sampling").
    Typical,
    /// Plain sampling: temperature 0.8, `top_p` 0.95.
    Temperature,
}

impl DecodingPolicy {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Greedy, Self::Typical, Self::Temperature];

    /// Name, as in a request.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Greedy => "greedy",
            Self::Typical => "typical",
            Self::Temperature => "temperature",
        }
    }

    /// Temperature, `top_p` and `typical_p` where a request names none.
    pub fn sampling(self) -> (f32, f32, f32) {
        match self {
            Self::Greedy => (0.0, 1.0, 1.0),
            Self::Typical => (0.7, 1.0, 0.95),
            Self::Temperature => (0.8, 0.95, 1.0),
        }
    }
}

impl std::str::FromStr for DecodingPolicy {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        let known = Self::ALL.into_iter().find(|policy| policy.as_str() == s);
        known.ok_or_else(|| {
            let names = Self::ALL.map(Self::as_str).join(", ");
            format!("must be one of {names}, got `{s}`")
        })
    }
}

/// Fields of a specialist.
const FIELDS: [&str; 19] = [
    "name",
    "description",
    "model",
    "adapter",
    "replicas",
    "remotes",
    "block_size",
    "kv_share",
    "policy",
    "max_num_seqs",
    "max_num_batched_tokens",
    "max_model_len",
    "speculative_config",
    "slo",
    "fallback",
    "classes",
    "intents",
    "system_prompt",
    "decoding_policy",
];

/// Paths of specialists with these names: `specialist.NAME`, or `specialist[N]`, counted from 0, where a name is
/// missing or is that of several.
pub(super) fn paths<'a>(names: impl Iterator<Item = &'a str>) -> Vec<String> {
    let names: Vec<&str> = names.collect();
    let unique = |name: &str| names.iter().filter(|own| **own == name).count() == 1;
    let path = |(at, name): (usize, &&str)| match !name.is_empty() && unique(name) {
        true => format!("specialist.{name}"),
        false => format!("specialist[{at}]"),
    };
    names.iter().enumerate().map(path).collect()
}

/// Reads a specialist. A share that is missing is 0 until the shares are divided.
pub(super) fn read(
    path: String,
    table: Table,
    default_model: Option<&str>,
    errors: &mut Vec<ConfigError>,
) -> SpecialistConfig {
    let mut reader = Reader::new(path, table, errors);
    let name = reader.required_string("name");
    let valid = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '_');
    if name.len() > MAX_NAME_BYTES || !name.chars().all(valid) {
        let what = format!(
            "must have at most {MAX_NAME_BYTES} characters of a-z, 0-9, - and _: it is in headers and metrics"
        );
        reader.error("name", what);
    }
    let has_model = reader.has("model");
    let model = reader.string("model").or(default_model.map(str::to_owned));
    if model.as_ref().is_none_or(String::is_empty) && !(has_model && model.is_none()) {
        reader.error("model", "is missing: give the specialist or the ensemble a model");
    }
    if reader.string("adapter").is_some() {
        let what = "is not supported: a specialist has no LoRA adapters. Merge the adapter into a model, and name that";
        reader.error("adapter", what);
    }
    let block_size = reader.count("block_size", 1, 1 << 16).unwrap_or(16);
    if !block_size.is_power_of_two() {
        reader.error("block_size", format_args!("must be a power of two, got {block_size}"));
    }
    let (seats, budget) = (
        reader.count("max_num_seqs", 1, MAX_COUNT),
        reader.count("max_num_batched_tokens", 1, MAX_COUNT),
    );
    if let (Some(seats), Some(budget)) = (seats, budget)
        && seats > budget
    {
        let what = format!(
            "must be at most max_num_batched_tokens, which is {budget}, got {seats}: a running request has at least \
             one token in a step"
        );
        reader.error("max_num_seqs", what);
    }
    let remotes = remote::read_all(&mut reader);
    // Without engines here, requests need servers elsewhere.
    let least = usize::from(remotes.is_empty());
    let replicas = reader.count("replicas", least, MAX_REPLICAS).unwrap_or(1);
    let kv_share = reader.number("kv_share", 0.001, 1.0).unwrap_or(0.0);
    if replicas == 0 && kv_share > 0.0 {
        reader.error(
            "kv_share",
            "is memory of this process, where `replicas = 0` leaves no engine: remove it",
        );
    }
    let speculative_config = speculation::read(&mut reader);
    if replicas == 0 && speculative_config.is_some() {
        reader.error(
            "speculative_config",
            "is for engines of this process, where `replicas = 0` leaves none: remove it",
        );
    }
    let specialist = SpecialistConfig {
        description: reader.string("description").unwrap_or_default(),
        model: model.unwrap_or_default(),
        replicas,
        remotes,
        block_size,
        kv_share,
        policy: reader.parsed("policy").unwrap_or(PolicyKind::StrictPriority),
        max_num_seqs: seats,
        max_num_batched_tokens: budget,
        max_model_len: reader.count("max_model_len", 2, MAX_COUNT),
        speculative_config,
        slo: reader.section("slo"),
        fallback: reader.string("fallback"),
        classes: reader.strings("classes").unwrap_or_else(|| {
            // A name that is missing has been reported.
            if name.is_empty() { Vec::new() } else { vec![name.clone()] }
        }),
        intents: reader.strings("intents").unwrap_or_default(),
        system_prompt: reader.string("system_prompt"),
        decoding_policy: reader.parsed("decoding_policy"),
        name,
    };
    reader.end(&FIELDS);
    specialist
}

impl SpecialistConfig {
    /// KV memory of one replica, of an ensemble that has `all`.
    pub fn kv_memory(&self, all: Budget) -> Budget {
        let share = all.bytes().0 as f64 * self.kv_share / self.replicas.max(1) as f64;
        Budget::exact(share as u64)
    }
}
