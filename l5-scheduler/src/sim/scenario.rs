//! Scenarios: requests with the output that they will get, and events.

use std::collections::HashSet;

use serde::{Deserialize, Deserializer};

use crate::composer::Compose;
use crate::{Adapter, ConfigError, PolicyKind, Request, RequestId, SchedulerConfig, Time};

/// Input of `strata simulate SCENARIO.json`. Unknown fields are ignored.
///
/// # Example
///
/// ```
/// use l5_scheduler::sim::{Scenario, replay};
///
/// let scenario = Scenario::from_json(
///     r#"{
///         "name": "two requests",
///         "config": {"policy": "fcfs", "block_size": 4, "num_gpu_blocks": 9, "max_num_seqs": 2},
///         "requests": [
///             {"id": "a", "prompt_token_ids": [1, 2, 3, 4, 5], "max_tokens": 2, "output_token_ids": [50, 51]},
///             {"id": "b", "arrival_step": 1, "prompt_token_ids": [6], "max_tokens": 1, "output_token_ids": [60]}
///         ]
///     }"#,
/// )?;
/// let trace = replay(&scenario)?;
/// assert_eq!(trace.steps[0].scheduled, [("a", 5)], "the prompt of `a`");
/// assert_eq!(trace.steps[1].scheduled, [("a", 1), ("b", 1)], "a decode, and the prompt of `b`");
/// assert_eq!(trace.summary.finished, 2);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Deserialize)]
pub struct Scenario {
    /// Name of the scenario.
    #[serde(default)]
    pub name: String,
    /// Description of the scenario.
    #[serde(default)]
    pub description: String,
    /// Configuration of the scheduler.
    pub config: ScenarioConfig,
    /// Requests, in the order in which those of one step are added.
    #[serde(default)]
    pub requests: Vec<ScenarioRequest>,
    /// Events between steps, besides arrivals.
    #[serde(default)]
    pub events: Vec<Event>,
    /// Number of steps after which the replay ends, even with unfinished requests.
    pub max_steps: Option<u64>,
}

/// Configuration of the scheduler, with vLLM's names, and what to record.
#[derive(Clone, Debug, Deserialize)]
pub struct ScenarioConfig {
    #[serde(default, deserialize_with = "policy")]
    policy: PolicyKind,
    block_size: usize,
    num_gpu_blocks: usize,
    max_num_seqs: Option<usize>,
    max_num_active_seqs: Option<usize>,
    max_num_batched_tokens: Option<usize>,
    #[serde(default)]
    long_prefill_token_threshold: usize,
    #[serde(default)]
    long_prefill_token_threshold_adaptive: bool,
    #[serde(default = "yes")]
    enable_chunked_prefill: bool,
    #[serde(default = "yes")]
    enable_prefix_caching: bool,
    max_model_len: Option<usize>,
    #[serde(default = "yes")]
    scheduler_reserve_full_isl: bool,
    #[serde(default)]
    watermark: f64,
    #[serde(default)]
    num_speculative_tokens: usize,
    /// Shapes of steps: `"mixed"`, or `{"stable": {"max_decode_steps": 16, "chunk": 256}}`.
    #[serde(default)]
    compose: Compose,
    #[serde(default)]
    adapter_turn: usize,
    /// Whether to record the order of the free list and the blocks with hashes at the end of each step.
    #[serde(default)]
    pub record_free_queue: bool,
    /// Which block tables to record.
    #[serde(default)]
    pub block_tables: Tables,
}

/// Which block tables are recorded in a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Tables {
    /// Tables of all running requests.
    #[default]
    All,
    /// Tables that are new or have grown.
    Changed,
}

/// A request, and the output that the model will give.
#[derive(Clone, Debug, Deserialize)]
pub struct ScenarioRequest {
    /// Name of the request. Where everything else is equal, names are compared as text.
    pub id: String,
    /// Step before which the request arrives.
    #[serde(default)]
    pub arrival_step: u64,
    /// Time of arrival, for policies that use it.
    pub arrival_time: Option<f64>,
    /// Prompt tokens.
    pub prompt_token_ids: Vec<u32>,
    /// Maximum number of output tokens.
    pub max_tokens: usize,
    /// Priority: a lower value runs earlier.
    #[serde(default)]
    pub priority: i64,
    /// Output tokens of the model, in order.
    #[serde(default)]
    pub output_token_ids: Vec<u32>,
    /// Drafts: entry `n` is proposed when the request has `n + 1` output tokens.
    #[serde(default)]
    pub draft_token_ids: Vec<Vec<u32>>,
    /// End-of-sequence token.
    pub eos_token_id: Option<u32>,
    /// Further tokens that end the output.
    pub stop_token_ids: Option<Vec<u32>>,
    /// Salt of the block hashes.
    pub cache_salt: Option<String>,
    /// LoRA adapter: name and path.
    pub lora: Option<(String, String)>,
    /// Whether to ignore cached blocks at admission.
    #[serde(default)]
    pub skip_reading_prefix_cache: bool,
}

/// An event before a step, besides arrivals.
#[derive(Clone, Debug, Deserialize)]
pub struct Event {
    /// Step before which it happens.
    pub step: u64,
    /// What happens.
    #[serde(flatten)]
    pub op: EventOp,
}

/// What can happen before a step.
#[derive(Clone, Debug, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
pub enum EventOp {
    /// Requests are aborted.
    Abort {
        /// Names of the requests.
        ids: Vec<String>,
    },
    /// The prefix cache is cleared.
    ResetPrefixCache {
        /// Whether to preempt running requests first: the cache cannot be cleared while blocks are in use.
        #[serde(default)]
        reset_running_requests: bool,
    },
}

/// Why a file is not a scenario.
#[derive(Debug, thiserror::Error)]
pub enum ScenarioError {
    /// Not JSON, or a field has the wrong type.
    #[error("invalid scenario: {what} (at `{path}`)")]
    Malformed {
        /// Path of the field: `requests[3].max_tokens`.
        path: String,
        /// What is wrong with it.
        what: serde_json::Error,
    },
    /// Two requests have the same name.
    #[error("requests[{index}].id: there are two requests `{id}`: names must be unique")]
    DuplicateId {
        /// Index of the second one, from 0.
        index: usize,
        /// The name.
        id: String,
    },
    /// An arrival time is not finite.
    #[error("requests[{index}].arrival_time must be a finite number of seconds, got {time}")]
    ArrivalTime {
        /// Index of the request, from 0.
        index: usize,
        /// The time.
        time: f64,
    },
    /// The configuration is invalid.
    #[error("config: {0}")]
    Config(#[from] ConfigError),
}

impl Scenario {
    /// Parses and checks a scenario.
    ///
    /// # Errors
    /// [`ScenarioError`], with the path of the field.
    pub fn from_json(json: &str) -> Result<Self, ScenarioError> {
        let mut input = serde_json::Deserializer::from_str(json);
        let read = serde_path_to_error::deserialize::<_, Self>(&mut input);
        let scenario = read.map_err(|e| {
            let path = e.path().to_string();
            ScenarioError::Malformed { path, what: e.into_inner() }
        })?;
        input.end().map_err(|what| ScenarioError::Malformed { path: ".".to_owned(), what })?;
        scenario.check()?;
        Ok(scenario)
    }

    /// Checks what types cannot express.
    ///
    /// # Errors
    /// [`ScenarioError`].
    pub fn check(&self) -> Result<(), ScenarioError> {
        self.config.scheduler().validate()?;
        let mut names = HashSet::new();
        for (index, request) in self.requests.iter().enumerate() {
            let id = &request.id;
            if !names.insert(id.as_str()) {
                return Err(ScenarioError::DuplicateId { index, id: id.clone() });
            }
            if let Some(time) = request.arrival_time.filter(|time| !time.is_finite()) {
                return Err(ScenarioError::ArrivalTime { index, time });
            }
        }
        Ok(())
    }
}

impl ScenarioConfig {
    /// Configuration of the scheduler.
    pub fn scheduler(&self) -> SchedulerConfig {
        let usual = SchedulerConfig::new(self.num_gpu_blocks, self.block_size);
        let (seqs, tokens) = (self.max_num_seqs, self.max_num_batched_tokens);
        SchedulerConfig {
            policy: self.policy,
            max_num_seqs: seqs.unwrap_or(usual.max_num_seqs),
            max_num_active_seqs: self.max_num_active_seqs,
            max_num_batched_tokens: tokens.unwrap_or(usual.max_num_batched_tokens),
            long_prefill_token_threshold: self.long_prefill_token_threshold,
            long_prefill_token_threshold_adaptive: self.long_prefill_token_threshold_adaptive,
            enable_chunked_prefill: self.enable_chunked_prefill,
            enable_prefix_caching: self.enable_prefix_caching,
            max_model_len: self.max_model_len.unwrap_or(usual.max_model_len),
            scheduler_reserve_full_isl: self.scheduler_reserve_full_isl,
            watermark: self.watermark,
            num_speculative_tokens: self.num_speculative_tokens,
            compose: self.compose,
            adapter_turn: self.adapter_turn,
            ..usual
        }
    }
}

impl ScenarioRequest {
    /// The scheduler's request for this one, the `index`-th of its file.
    pub fn request(&self, index: usize, id: RequestId) -> Request {
        // Requests that arrive before the same step arrive one after the other.
        let usual = self.arrival_step as f64 + 1e-6 * index as f64;
        Request {
            id,
            prompt: self.prompt_token_ids.clone(),
            max_tokens: self.max_tokens,
            eos: self.eos_token_id.into_iter().collect(),
            stop_token_ids: self.stop_token_ids.clone().unwrap_or_default(),
            arrival: Time(self.arrival_time.unwrap_or(usual)),
            priority: self.priority,
            adapter: self
                .lora
                .as_ref()
                .map(|(name, path)| Adapter { name: name.clone(), path: path.clone() }),
            cache_salt: self.cache_salt.clone(),
            skip_reading_prefix_cache: self.skip_reading_prefix_cache,
            ..Request::default()
        }
    }
}

fn yes() -> bool {
    true
}

fn policy<'de, D: Deserializer<'de>>(from: D) -> Result<PolicyKind, D::Error> {
    String::deserialize(from)?.parse().map_err(serde::de::Error::custom)
}
