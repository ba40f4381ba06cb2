//! The workload of an ensemble: traffic for the specialists of an ensemble file.

use std::collections::BTreeMap;

use l5_scheduler::{CostError, CostModel, SchedulerConfig};
use serde::Deserialize;

use super::traffic::Routed;
use super::workload::{SimLane, SimWorkload, Stream, WorkloadFileError, waiting};
use crate::EnsembleConfig;
use crate::router::{Classifier, LoadError, Part, RouteInput, Router, RouterError};

/// Traffic for an ensemble. The lanes, the router, the thresholds and the escalation are those of the ensemble file.
///
/// # Example
///
/// ```
/// use l6_ensemble::EnsembleConfig;
/// use l6_ensemble::sim::{EnsembleSim, EnsembleWorkload};
///
/// let config = EnsembleConfig::parse(r#"
///     model = "any"
///     kv_memory = "256MiB"
///     fallback = "stl"
///     specialist = [{ name = "stl" }, { name = "debug", intents = ["debug"] }]
/// "#)?;
/// let workload = EnsembleWorkload::from_toml(r#"
///     requests = 100
///
///     [[stream]]
///     name = "traces"
///     rate = 5.0
///     input = { uniform = [50, 100] }
///     output = { constant = 50 }
///     deadline = { constant = 10.0 }
///     intent = "debug"
/// "#)?;
/// let report = EnsembleSim::of_ensemble(&config, &workload)?.run()?;
/// let offered: Vec<_> = report.lanes.iter().map(|lane| (&*lane.name, lane.offered)).collect();
/// assert_eq!(offered, [("stl", 0), ("debug", 100)]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EnsembleWorkload {
    /// Number of requests that are offered, of all streams together.
    pub requests: u64,
    /// Seed of all random numbers.
    #[serde(default)]
    pub seed: u64,
    /// Duration of the steps of specialists that `[lane.NAME]` gives no cost. Its `kv_bytes_per_token` says how many
    /// tokens the KV memory holds.
    #[serde(default = "super::workload::cost")]
    pub cost: CostModel,
    /// Maximum number of waiting requests of a replica.
    #[serde(default = "super::workload::waiting")]
    pub max_num_waiting: usize,
    /// What the ensemble file does not say about specialists.
    #[serde(default, rename = "lane")]
    pub lanes: BTreeMap<String, LaneOptions>,
    /// Streams of requests.
    #[serde(rename = "stream")]
    pub streams: Vec<Stream>,
}

/// What the ensemble file does not say about a specialist.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LaneOptions {
    /// Duration of its steps.
    pub cost: Option<CostModel>,
    /// Whether each of its replicas has a device of its own.
    pub own_device: bool,
    /// Largest priority number that is accepted, as an operator sets it.
    pub priority_floor: Option<i64>,
}

/// Why an ensemble cannot be simulated.
#[derive(Debug, thiserror::Error)]
pub enum EnsembleSimError {
    /// The workload is invalid.
    #[error(transparent)]
    Workload(#[from] WorkloadFileError),
    /// `[lane.NAME]` names no specialist.
    #[error("invalid workload: `lane.{0}` is no specialist of the ensemble")]
    UnknownSpecialist(String),
    /// A stream has neither texts nor an intent nor lanes.
    #[error("invalid workload: stream `{0}` has no route: give it `intent`, `texts` or `lanes`")]
    NoRoute(String),
    /// A stream declares an intent that the router does not know.
    #[error(
        "invalid workload: stream `{stream}`: the intent `{intent}` is unknown to the ensemble"
    )]
    UnknownIntent {
        /// Name of the stream.
        stream: String,
        /// The intent.
        intent: String,
    },
    /// No specialist has an engine that could be simulated.
    #[error(
        "all specialists run on other machines only (`replicas = 0`), and only engines are simulated: give one replicas"
    )]
    OnlyRemotes,
    /// A cost model is invalid.
    #[error("invalid workload: cost: {0}")]
    Cost(#[from] CostError),
    /// Several errors.
    #[error("{}", joined(.0))]
    Several(Vec<EnsembleSimError>),
    /// The classifier cannot be read.
    #[error(transparent)]
    Classifier(#[from] LoadError),
    /// The router's configuration is invalid.
    #[error(transparent)]
    Router(#[from] RouterError),
}

fn joined(errors: &[EnsembleSimError]) -> String {
    errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

impl EnsembleSimError {
    /// All errors as one: itself, if there is one.
    fn all(mut errors: Vec<Self>) -> Result<(), Self> {
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
            Self::Workload(errors) => errors.problems(),
            one => vec![one.to_string()],
        }
    }
}

impl EnsembleWorkload {
    /// Reads a file.
    ///
    /// # Errors
    /// [`WorkloadFileError`].
    pub fn from_toml(text: &str) -> Result<Self, WorkloadFileError> {
        super::workload::read(text)
    }

    /// The lanes of the ensemble with this traffic, and the routes of all texts.
    ///
    /// # Errors
    /// [`EnsembleSimError`].
    pub(super) fn plan(&self, config: &EnsembleConfig) -> Result<SimWorkload, EnsembleSimError> {
        let unknown = self.lanes.keys().filter(|name| config.index(name).is_none());
        let mut errors: Vec<_> =
            unknown.map(|name| EnsembleSimError::UnknownSpecialist(name.clone())).collect();
        if config.specialists.iter().all(|own| own.replicas == 0) {
            errors.push(EnsembleSimError::OnlyRemotes);
        }
        let mut lanes = Vec::new();
        let mut first_replica = Vec::new();
        for specialist in &config.specialists {
            // What runs on other machines only is not simulated.
            first_replica.push((specialist.replicas > 0).then_some(lanes.len()));
            let options = self.lanes.get(&specialist.name).cloned().unwrap_or_default();
            let cost = options.cost.unwrap_or(self.cost);
            errors.extend(cost.check().err().map(EnsembleSimError::Cost));
            let memory = specialist.kv_memory(config.kv_memory).bytes().0 as f64;
            let block = specialist.block_size as f64 * cost.kv_bytes_per_token.max(1.0);
            for replica in 0..specialist.replicas {
                let name = match replica {
                    0 => specialist.name.clone(),
                    _ => format!("{}/{replica}", specialist.name),
                };
                let limits = SimLane::with_blocks(name, (memory / block) as usize + 1);
                lanes.push(SimLane {
                    block_size: specialist.block_size,
                    policy: specialist.policy,
                    max_num_seqs: specialist.max_num_seqs.unwrap_or(limits.max_num_seqs),
                    max_num_batched_tokens: specialist
                        .max_num_batched_tokens
                        .unwrap_or(limits.max_num_batched_tokens),
                    max_model_len: specialist.max_model_len,
                    max_num_waiting: self.max_num_waiting,
                    priority_floor: options.priority_floor,
                    cost,
                    own_device: options.own_device,
                    slo: specialist.slo,
                    replicas: specialist.replicas,
                    ..limits
                });
            }
        }
        let workload = SimWorkload {
            requests: self.requests,
            seed: self.seed,
            spill_below: 0.0,
            lanes,
            streams: self.streams.clone(),
            routes: self.routes(config, &first_replica, &mut errors)?,
            escalation: Some(config.escalation.clone()),
        };
        // A stream without a route has an error of its own.
        let without = |error: &WorkloadFileError| match error {
            WorkloadFileError::Field { stream, field: "lanes", .. } => !errors
                .iter()
                .any(|own| matches!(own, EnsembleSimError::NoRoute(name) if name == stream)),
            _ => true,
        };
        let values: Vec<_> = workload.errors().into_iter().filter(without).collect();
        errors.extend(values.into_iter().map(EnsembleSimError::Workload));
        EnsembleSimError::all(errors)?;
        Ok(workload)
    }

    /// Routes of the texts of each stream, by the router of the server.
    fn routes(
        &self,
        config: &EnsembleConfig,
        first_replica: &[Option<usize>],
        errors: &mut Vec<EnsembleSimError>,
    ) -> Result<Vec<Vec<Option<Routed>>>, EnsembleSimError> {
        let classifier = config.router.classifier.load()?;
        let classifier = classifier.map(|own| Box::new(own) as Box<dyn Classifier>);
        let names = config.specialists.iter().map(|own| own.name.clone()).collect();
        let router = Router::new(config.router.clone(), classifier, names)?;
        let lane = |name: Option<&String>| first_replica[config.index(name?)?];
        let mut all = Vec::new();
        for stream in &self.streams {
            let intent = stream.intent.as_deref();
            if let Some(intent) = intent.filter(|own| !router.config().intents().contains(own)) {
                let (stream, intent) = (stream.name.clone(), intent.to_owned());
                errors.push(EnsembleSimError::UnknownIntent { stream, intent });
            }
            if intent.is_none() && stream.texts.is_empty() && stream.lanes.is_empty() {
                errors.push(EnsembleSimError::NoRoute(stream.name.clone()));
            }
            let thresholds = config.shadow.intent(intent.unwrap_or("unspecified"));
            let route = |text: &str| {
                let route = router.route(&RouteInput { intent, parts: &[Part::user(text)] });
                let first = lane(route.primary.as_ref().or(config.fallback.as_ref()))?;
                Some(Routed {
                    first,
                    second: lane(route.second.as_ref()).filter(|second| *second != first),
                    // Without a classifier nothing says that the router was unsure.
                    score: route.score.map_or(1.0, f64::from),
                    spill_below: thresholds.spill_below.into(),
                })
            };
            all.push(match (stream.texts.is_empty(), intent) {
                (false, _) => stream.texts.iter().map(|text| route(text)).collect(),
                (true, Some(_)) => vec![route("")],
                (true, None) => Vec::new(),
            });
        }
        Ok(all)
    }
}

impl SimLane {
    /// A lane with the limits that an engine has where a file says nothing.
    fn with_blocks(name: String, num_gpu_blocks: usize) -> Self {
        let limits = SchedulerConfig::new(num_gpu_blocks, super::workload::block_size());
        Self {
            name,
            max_num_seqs: limits.max_num_seqs,
            num_gpu_blocks,
            block_size: limits.block_size,
            max_num_batched_tokens: limits.max_num_batched_tokens,
            policy: super::workload::strict(),
            max_num_waiting: waiting(),
            priority_floor: None,
            cost: super::workload::cost(),
            own_device: false,
            max_model_len: None,
            slo: Default::default(),
            replicas: 1,
        }
    }
}
