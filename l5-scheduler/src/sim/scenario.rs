//! A scenario: requests with the answers that they will get, and what happens to them on the way.

use std::collections::HashSet;

use serde::{Deserialize, Deserializer};

use crate::{Adapter, ConfigError, PolicyKind, Request, RequestId, SchedulerConfig, Time};

/// What `strata simulate SCENARIO.json` reads. Fields that it does not know are left alone.
#[derive(Clone, Debug, Deserialize)]
pub struct Scenario {
    /// What it is called.
    #[serde(default)]
    pub name: String,
    /// What it is for.
    #[serde(default)]
    pub description: String,
    /// The scheduler's limits.
    pub config: ScenarioConfig,
    /// Who comes, in the order in which those of one step are added.
    #[serde(default)]
    pub requests: Vec<ScenarioRequest>,
    /// What happens between steps, beside arrivals.
    #[serde(default)]
    pub events: Vec<Event>,
    /// End after so many steps, whoever is left.
    pub max_steps: Option<u64>,
}

/// The scheduler's configuration, with vLLM's names; and how much to record.
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
    /// Record the order of the free list and which blocks have hashes, at the end of each step.
    #[serde(default)]
    pub record_free_queue: bool,
    /// Whose block tables are recorded.
    #[serde(default)]
    pub block_tables: Tables,
}

/// Whose block tables are recorded in a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Tables {
    /// Of everybody who runs.
    #[default]
    All,
    /// Of those whose tables are new or have grown.
    Changed,
}

/// A request, and what the model will answer.
#[derive(Clone, Debug, Deserialize)]
pub struct ScenarioRequest {
    /// Its name. Names are compared as text where everything else is equal.
    pub id: String,
    /// The step before which it comes.
    #[serde(default)]
    pub arrival_step: u64,
    /// When it comes, for policies that look at it.
    pub arrival_time: Option<f64>,
    /// The prompt.
    pub prompt_token_ids: Vec<u32>,
    /// The most tokens of its answer.
    pub max_tokens: usize,
    /// Lower goes first.
    #[serde(default)]
    pub priority: i64,
    /// What the model says, in order.
    #[serde(default)]
    pub output_token_ids: Vec<u32>,
    /// The token that ends it.
    pub eos_token_id: Option<u32>,
    /// Others that do.
    pub stop_token_ids: Option<Vec<u32>>,
    /// Keeps its blocks apart.
    pub cache_salt: Option<String>,
    /// Its adapter: name and path.
    pub lora: Option<(String, String)>,
    /// Whether to begin without cached blocks.
    #[serde(default)]
    pub skip_reading_prefix_cache: bool,
}

/// What happens before a step, beside arrivals.
#[derive(Clone, Debug, Deserialize)]
pub struct Event {
    /// Before which step.
    pub step: u64,
    /// What.
    #[serde(flatten)]
    pub op: EventOp,
}

/// What can happen.
#[derive(Clone, Debug, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
pub enum EventOp {
    /// Requests are not wanted any more.
    Abort {
        /// Which.
        ids: Vec<String>,
    },
    /// What is cached is to be forgotten.
    ResetPrefixCache {
        /// Preempt whoever runs, since nothing is forgotten while blocks are in use.
        #[serde(default)]
        reset_running_requests: bool,
    },
}

/// Why a file is no scenario.
#[derive(Debug, thiserror::Error)]
pub enum ScenarioError {
    /// Not JSON, or something in it is not what it should be.
    #[error("{what} (at `{path}`): see the scenario format, and correct the file there")]
    Malformed {
        /// Where: `requests[3].max_tokens`.
        path: String,
        /// What is wrong with it.
        what: serde_json::Error,
    },
    /// Two requests of one name.
    #[error("requests[{index}].id: there are two requests `{id}`; give each a name of its own")]
    DuplicateId {
        /// The second one's number, from 0.
        index: usize,
        /// The name.
        id: String,
    },
    /// A moment that is none.
    #[error("requests[{index}].arrival_time: {time} is no moment; give seconds, or leave it out")]
    ArrivalTime {
        /// The request's number, from 0.
        index: usize,
        /// What it says.
        time: f64,
    },
    /// A configuration that cannot work.
    #[error("config: {0}")]
    Config(#[from] ConfigError),
}

impl Scenario {
    /// Read a scenario.
    ///
    /// # Errors
    /// [`ScenarioError`], with the place in the file.
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

    /// Look for what types cannot tell.
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
    /// What the scheduler is made from.
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
            ..usual
        }
    }
}

impl ScenarioRequest {
    /// The request, the `index`-th of its file, under a number.
    pub fn request(&self, index: usize, id: RequestId) -> Request {
        // Those of one step come one after the other.
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
