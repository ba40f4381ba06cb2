//! The file of a simulation: lanes, and streams of requests.

use l5_scheduler::sim::{Lengths, Seconds, SharedPrefix, Spec, WorkloadError};
use l5_scheduler::{ConfigError, CostError, CostModel, PolicyKind, SchedulerConfig};
use serde::{Deserialize, Deserializer, de};

use super::traffic::Routed;
use crate::config::{ConfigError as FieldError, section};
use crate::escalation::EscalationConfig;
use crate::slo::SloTargets;

/// Lanes and streams of requests.
///
/// # Example
///
/// ```
/// use l6_ensemble::sim::{EnsembleSim, SimWorkload};
///
/// let workload = SimWorkload::from_toml(r#"
///     requests = 200
///
///     [[lane]]
///     name = "debug"
///     max_num_seqs = 8
///     num_gpu_blocks = 513
///
///     [[stream]]
///     name = "traces"
///     rate = 20.0                     # requests a second: more than the lane can serve
///     input = { uniform = [50, 100] }
///     output = { constant = 50 }
///     deadline = { constant = 10.0 }  # seconds after the arrival
///     lanes = [["debug", 1.0]]
/// "#)?;
/// let report = EnsembleSim::new(workload)?.run()?;
/// let lane = &report.lanes[0];
/// assert_eq!(lane.offered, 200);
/// assert_eq!(lane.admitted + lane.refused_total(), 200);
/// assert!(lane.goodput().is_some_and(|goodput| goodput >= 0.95));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SimWorkload {
    /// Number of requests that are offered, of all streams together.
    pub requests: u64,
    /// Seed of all random numbers.
    #[serde(default)]
    pub seed: u64,
    /// Score of the first choice below which a refused request may spill to the second one. 0: none does.
    #[serde(default)]
    pub spill_below: f64,
    /// Lanes.
    #[serde(rename = "lane")]
    pub lanes: Vec<SimLane>,
    /// Streams of requests.
    #[serde(rename = "stream")]
    pub streams: Vec<Stream>,
    /// Routes of the texts of each stream, for the workload of an ensemble.
    #[serde(skip)]
    pub(super) routes: Vec<Vec<Option<Routed>>>,
    /// Escalation under load, for the workload of an ensemble.
    #[serde(skip)]
    pub(super) escalation: Option<EscalationConfig>,
}

/// A lane: one replica, whose scheduler has these limits.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SimLane {
    /// Name of the lane.
    pub name: String,
    /// Maximum number of running requests.
    pub max_num_seqs: usize,
    /// Number of blocks of the pool, including the null block.
    pub num_gpu_blocks: usize,
    /// Tokens of a block.
    #[serde(default = "block_size")]
    pub block_size: usize,
    /// Maximum number of tokens of a step.
    #[serde(default = "step_tokens")]
    pub max_num_batched_tokens: usize,
    /// Scheduling policy.
    #[serde(default = "strict", deserialize_with = "policy")]
    pub policy: PolicyKind,
    /// Maximum number of waiting requests.
    #[serde(default = "waiting")]
    pub max_num_waiting: usize,
    /// Largest priority number that is accepted.
    #[serde(default)]
    pub priority_floor: Option<i64>,
    /// Duration of a step.
    #[serde(default = "cost")]
    pub cost: CostModel,
    /// Whether the lane has a device of its own, and does not take turns with others.
    #[serde(default)]
    pub own_device: bool,
    /// Maximum number of tokens of a request. `None`: what fits the pool.
    #[serde(default)]
    pub max_model_len: Option<usize>,
    /// Service-level objectives, which count for escalation.
    #[serde(skip)]
    pub slo: SloTargets,
    /// Number of lanes, from this one on, that are replicas of one specialist: a request goes to the one with the
    /// fewest requests. 0 and 1 mean that there is no other.
    #[serde(skip)]
    pub(super) replicas: usize,
}

/// A stream of requests.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Stream {
    /// Name of the stream, for errors.
    pub name: String,
    /// Requests a second, as a Poisson process.
    pub rate: f64,
    /// Prompt tokens, without a shared prefix.
    pub input: Lengths,
    /// Output tokens that a request will have.
    pub output: Lengths,
    /// Maximum number of output tokens that a request states. `None`: exactly those that it will have, and the door
    /// knows that it will have as many, as with `ignore_eos`.
    #[serde(default)]
    pub max_tokens: Option<usize>,
    /// Prefix that several prompts share.
    #[serde(default)]
    pub shared_prefix: Option<SharedPrefix>,
    /// Priorities with their weights.
    #[serde(default)]
    pub priorities: Option<Vec<(i64, f64)>>,
    /// Seconds from a request's arrival to its deadline.
    #[serde(default)]
    pub deadline: Option<Seconds>,
    /// Fraction of the requests that have one.
    #[serde(default = "all")]
    pub deadline_fraction: f64,
    /// Declared intent of the requests. Only for an ensemble, whose router decides by it.
    #[serde(default)]
    pub intent: Option<String>,
    /// Texts of the requests, of which each has one at random: the message of a user. Only for an ensemble, whose
    /// router reads them. They say nothing about the number of prompt tokens.
    #[serde(default)]
    pub texts: Vec<String>,
    /// Lanes to which the requests are routed, with weights. Of an ensemble: as if clients named the specialist.
    #[serde(default)]
    pub lanes: Vec<(String, f64)>,
    /// Lane of the second choice. The score of the first choice is uniform in [0, 1).
    #[serde(default)]
    pub second: Option<String>,
}

/// Why a file is no workload of an ensemble.
#[derive(Debug, thiserror::Error)]
pub enum WorkloadFileError {
    /// Not TOML.
    #[error("invalid workload: {0}")]
    Toml(#[from] toml::de::Error),
    /// A field is unknown or missing, or its value is of another type.
    #[error("invalid workload: {0}")]
    Read(FieldError),
    /// Several errors.
    #[error("{}", joined(.0))]
    Several(Vec<WorkloadFileError>),
    /// There is no lane, or no stream.
    #[error("invalid workload: there is no [[{0}]]: give at least one")]
    Empty(&'static str),
    /// Two lanes have one name.
    #[error("invalid workload: two lanes are named `{0}`: choose other names")]
    DuplicateLane(String),
    /// A stream names a lane that is not there.
    #[error("invalid workload: stream `{stream}` names the lane `{lane}`, which is no [[lane]]")]
    UnknownLane {
        /// Name of the stream.
        stream: String,
        /// Name of the lane.
        lane: String,
    },
    /// A field of a stream has an invalid value.
    #[error("invalid workload: stream `{stream}`: {field} {why}")]
    Field {
        /// Name of the stream.
        stream: String,
        /// Name of the field.
        field: &'static str,
        /// What it must be.
        why: String,
    },
    /// The requests of a stream cannot be made.
    #[error("invalid workload: stream `{stream}`: {why}")]
    Stream {
        /// Name of the stream.
        stream: String,
        /// What is wrong.
        why: WorkloadError,
    },
    /// The limits of a lane contradict each other.
    #[error("invalid workload: lane `{lane}`: {why}")]
    Lane {
        /// Name of the lane.
        lane: String,
        /// What is wrong.
        why: ConfigError,
    },
    /// The cost model of a lane is invalid.
    #[error("invalid workload: lane `{lane}`: {why}")]
    Cost {
        /// Name of the lane.
        lane: String,
        /// What is wrong.
        why: CostError,
    },
}

fn joined(errors: &[WorkloadFileError]) -> String {
    errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

impl WorkloadFileError {
    /// All errors as one: itself, if there is one.
    pub(super) fn all(mut errors: Vec<Self>) -> Result<(), Self> {
        match errors.len() {
            0 => Ok(()),
            1 => Err(errors.remove(0)),
            _ => Err(Self::Several(errors)),
        }
    }

    /// Each error in its words.
    pub fn problems(&self) -> Vec<String> {
        match self {
            Self::Several(errors) => errors.iter().flat_map(Self::problems).collect(),
            one => vec![one.to_string()],
        }
    }
}

/// Reads a workload, with every error of its fields.
pub(super) fn read<T: de::DeserializeOwned>(text: &str) -> Result<T, WorkloadFileError> {
    let first = match toml::from_str(text) {
        Ok(workload) => return Ok(workload),
        Err(why) => why,
    };
    // serde ends at the first error. The fields have a table for each part, or the text is no TOML.
    let Ok(table) = text.parse::<toml::Table>() else { return Err(first.into()) };
    let errors = section::field_errors::<T>(&table);
    WorkloadFileError::all(errors.into_iter().map(WorkloadFileError::Read).collect())?;
    Err(first.into())
}

impl SimWorkload {
    /// Reads and checks a file.
    ///
    /// # Errors
    /// [`WorkloadFileError`].
    pub fn from_toml(text: &str) -> Result<Self, WorkloadFileError> {
        let workload: Self = read(text)?;
        workload.check()?;
        Ok(workload)
    }

    /// Checks the values.
    ///
    /// # Errors
    /// [`WorkloadFileError`], with all errors.
    pub fn check(&self) -> Result<(), WorkloadFileError> {
        WorkloadFileError::all(self.errors())
    }

    /// Every error of the values.
    pub(super) fn errors(&self) -> Vec<WorkloadFileError> {
        let mut errors = Vec::new();
        for (what, empty) in [("lane", self.lanes.is_empty()), ("stream", self.streams.is_empty())]
        {
            if empty {
                errors.push(WorkloadFileError::Empty(what));
            }
        }
        for (i, SimLane { name, cost, .. }) in self.lanes.iter().enumerate() {
            let lane = name.clone();
            if self.lanes[..i].iter().any(|other| other.name == *name) {
                errors.push(WorkloadFileError::DuplicateLane(lane.clone()));
            }
            let limits = self.lanes[i].scheduler().validate();
            errors.extend(
                limits.err().map(|why| WorkloadFileError::Lane { lane: lane.clone(), why }),
            );
            errors.extend(cost.check().err().map(|why| WorkloadFileError::Cost { lane, why }));
        }
        self.streams.iter().for_each(|stream| stream.check(self, &mut errors));
        errors
    }

    /// Index of a lane.
    pub fn lane(&self, name: &str) -> Option<usize> {
        self.lanes.iter().position(|lane| lane.name == name)
    }
}

impl SimLane {
    /// Configuration of the lane's scheduler.
    pub fn scheduler(&self) -> SchedulerConfig {
        let limits = SchedulerConfig::new(self.num_gpu_blocks, self.block_size);
        SchedulerConfig {
            policy: self.policy,
            max_num_seqs: self.max_num_seqs,
            max_num_batched_tokens: self.max_num_batched_tokens,
            max_model_len: self.max_model_len.unwrap_or(limits.max_model_len),
            ..limits
        }
    }
}

impl Stream {
    fn check(&self, workload: &SimWorkload, errors: &mut Vec<WorkloadFileError>) {
        let stream = || self.name.clone();
        let mut wrong = |field, why: &str| {
            errors.push(WorkloadFileError::Field { stream: stream(), field, why: why.to_owned() });
        };
        if !(self.rate.is_finite() && self.rate > 0.0) {
            wrong("rate", "must be a number of requests a second above 0");
        }
        if self.max_tokens == Some(0) {
            wrong("max_tokens", "must be at least 1");
        }
        if !(0.0..=1.0).contains(&self.deadline_fraction) {
            wrong("deadline_fraction", "must be from 0 to 1");
        }
        if let Some(Err(why)) = self.deadline.as_ref().map(Seconds::check) {
            wrong("deadline", &why);
        }
        let is_routed = self.intent.is_some() || !self.texts.is_empty();
        match (is_routed, workload.routes.is_empty()) {
            (true, true) => wrong("texts", "and intent need an ensemble, whose router reads them"),
            (true, false) if !self.lanes.is_empty() => {
                wrong("lanes", "and texts exclude one another: the router decides by texts");
            }
            _ => {}
        }
        if is_routed {
            return;
        }
        let weights = self.lanes.iter().map(|(_, weight)| *weight);
        let good = weights.clone().all(|weight| weight.is_finite() && weight >= 0.0);
        if !good || weights.sum::<f64>() <= 0.0 {
            wrong("lanes", "must be pairs of a lane and a weight, at least one above 0");
        }
        let names = self.lanes.iter().map(|(name, _)| name).chain(&self.second);
        for name in names.filter(|name| workload.lane(name).is_none()) {
            errors.push(WorkloadFileError::UnknownLane { stream: stream(), lane: name.clone() });
        }
    }

    /// Specification of the stream's requests. Deadlines are drawn apart from it.
    pub(super) fn spec(&self) -> Spec {
        Spec {
            requests: u64::MAX,
            input: self.input.clone(),
            output: self.output.clone(),
            shared_prefix: self.shared_prefix.clone(),
            priorities: self.priorities.clone(),
            deadline: None,
        }
    }
}

fn policy<'de, D: Deserializer<'de>>(from: D) -> Result<PolicyKind, D::Error> {
    String::deserialize(from)?.parse().map_err(de::Error::custom)
}

pub(super) fn block_size() -> usize {
    16
}

pub(super) fn step_tokens() -> usize {
    256
}

pub(super) fn strict() -> PolicyKind {
    PolicyKind::StrictPriority
}

pub(super) fn waiting() -> usize {
    256
}

pub(super) fn cost() -> CostModel {
    CostModel::SMOLLM2_TWO_CORES
}

fn all() -> f64 {
    1.0
}
