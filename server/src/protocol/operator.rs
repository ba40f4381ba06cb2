//! Schemas of the endpoints for operators of an ensemble: `/strata/lanes`, `/strata/slo`, `/strata/ensemble` and
//! `/strata/reload`.
//!
//! These types describe what others serialise, since `l6-ensemble` knows nothing of OpenAPI. A test validates real
//! responses, and that every field of them is described.

use std::collections::BTreeMap;

use serde::Serialize;
use utoipa::ToSchema;

use crate::error::ErrorBody;

/// A change: of a lane, or of the level of escalation.
#[derive(Serialize, ToSchema)]
#[serde(untagged)]
pub enum Change {
    /// Of a lane. An absent field keeps what is in force.
    Lane(LaneChange),
    /// Of the level of escalation.
    Escalation(EscalationChange),
}

/// A change of a lane. An absent field keeps what is in force, and `null` clears an override.
#[derive(Serialize, ToSchema)]
pub struct LaneChange {
    /// Name of the lane.
    pub lane: String,
    /// How the breaker is operated. `null` is `auto`; `close`, an older spelling of `closed`, is accepted.
    pub breaker: Option<BreakerMode>,
    /// Score below which a request has a shadow, for all intents.
    #[schema(minimum = 0, maximum = 1)]
    pub shadow_below: Option<f32>,
    /// Score below which a request may move to its second choice, for all intents.
    #[schema(minimum = 0, maximum = 1)]
    pub spill_below: Option<f32>,
    /// Priority number above which the lane refuses requests.
    pub priority_floor: Option<i64>,
}

/// A change of the escalation.
#[derive(Serialize, ToSchema)]
pub struct EscalationChange {
    /// Level to hold; `null`: the load decides.
    #[schema(required = true)]
    pub escalation_level: Option<usize>,
}

/// How a breaker is operated, named by the state that it forces.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum BreakerMode {
    /// The verdicts decide.
    Auto,
    /// The lane is shadow-only, whatever the verdicts are.
    Open,
    /// The lane serves, whatever the verdicts are.
    Closed,
}

/// State of a breaker.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum BreakerState {
    /// The lane serves.
    Closed,
    /// The lane is demoted.
    Open,
    /// The lane serves again, under observation.
    Probation,
}

/// What a lane may do.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// It serves its requests.
    Primary,
    /// It serves its requests and is watched.
    Probation,
    /// It gets shadows only: its fallback serves its requests, if one can.
    ShadowOnly,
}

/// An ensemble, and its escalation.
#[derive(Serialize, ToSchema)]
pub struct EnsembleStatus {
    /// Name of the ensemble.
    pub ensemble: String,
    /// Version of its file that is in force.
    pub config: ConfigVersion,
    /// Level of escalation.
    pub escalation: EscalationStatus,
    /// Number of shadows in flight.
    pub shadows_in_flight: usize,
    /// Its lanes, in the order of the file.
    pub lanes: Vec<ServedLaneStatus>,
}

/// A version of the file.
#[derive(Serialize, ToSchema)]
pub struct ConfigVersion {
    /// 1 at the start of the server, and one more with each reload.
    pub version: u64,
    /// When it was loaded, in UTC.
    pub loaded: String,
}

/// State of the escalation.
#[derive(Serialize, ToSchema)]
pub struct EscalationStatus {
    /// Level in force.
    pub level: usize,
    /// Highest level.
    pub max_level: usize,
    /// Level that follows from the load.
    pub automatic_level: usize,
    /// Level that an operator holds.
    pub pinned: Option<usize>,
    /// What the level in force changes.
    pub thresholds: EscalationThresholds,
}

/// What a level of escalation changes.
#[derive(Serialize, ToSchema)]
pub struct EscalationThresholds {
    /// Factor of `shadow_below` and of the sampled fractions of shadows.
    pub shadow_scale: f32,
    /// Addition to `spill_below`.
    pub spill_raise: f32,
    /// Priority number above which requests are refused.
    pub priority_floor: Option<i64>,
}

/// State of a lane.
#[derive(Serialize, ToSchema)]
pub struct LaneStatus {
    /// Name of the lane.
    pub lane: String,
    /// Number of its engines that live.
    pub engines: usize,
    /// What the lane may do, by the state of its breaker that is in force.
    pub role: Role,
    /// Its breaker.
    pub breaker: BreakerStatus,
    /// Thresholds that an operator has set; an absent one is the configured one.
    pub overrides: LaneOverrides,
    /// Priority number above which requests are refused, by the operator or by the escalation.
    pub priority_floor: Option<i64>,
}

/// State of a lane's breaker.
#[derive(Serialize, ToSchema)]
pub struct BreakerStatus {
    /// How it is operated.
    pub mode: BreakerMode,
    /// State in force: the mode's, unless that is `auto`.
    pub state: BreakerState,
    /// What the verdicts say, and what holds in the mode `auto`.
    pub verdicts: BreakerState,
    /// Seconds in what the verdicts say; `null` while that is `closed`.
    pub seconds: Option<f64>,
    /// Pass rate of the verdicts since the last transition; `null` without one.
    pub pass_rate: Option<f64>,
    /// Number of these verdicts.
    pub samples: u64,
    /// Number of times that the verdicts demoted the lane.
    pub trips: u64,
    /// Its levels and times.
    pub config: BreakerConfig,
}

/// Levels and times of a breaker. Times are texts such as `15m`.
#[derive(Serialize, ToSchema)]
pub struct BreakerConfig {
    /// Pass rate below which the lane is demoted.
    pub trip_below: f64,
    /// Pass rate from which on the lane recovers.
    pub reset_above: f64,
    /// Minimum number of verdicts for a transition.
    pub min_samples: u64,
    /// Window of the pass rate.
    pub window: String,
    /// Minimum time between two transitions.
    pub dwell: String,
    /// Minimum time of probation.
    pub probation: String,
}

/// Thresholds that an operator has set.
#[derive(Serialize, ToSchema)]
pub struct LaneOverrides {
    /// Score below which a request has a shadow.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shadow_below: Option<f32>,
    /// Score below which a request may move to its second choice.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spill_below: Option<f32>,
    /// Priority number above which the lane refuses requests.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority_floor: Option<i64>,
}

/// State of a lane, its freshness, and its replicas that serve no requests.
#[derive(Serialize, ToSchema)]
pub struct ServedLaneStatus {
    /// State.
    #[serde(flatten)]
    pub status: LaneStatus,
    /// Verdicts since its version changed.
    pub freshness: FreshnessStatus,
    /// Replicas that serve no requests.
    pub down: Vec<DownReplica>,
}

/// Freshness of a lane.
#[derive(Serialize, ToSchema)]
pub struct FreshnessStatus {
    /// Whether the lane has too few verdicts since its version changed.
    pub fresh: bool,
    /// Number of its verdicts since then.
    pub verdicts: u64,
    /// Number of verdicts from which on it is not fresh.
    pub needed: u64,
    /// What the verdicts are about.
    pub version: LaneVersion,
}

/// What the verdicts about a lane are about.
#[derive(Serialize, ToSchema)]
pub struct LaneVersion {
    /// Name and digest of the model.
    pub model: String,
    /// Name of the adapter; `null` without one.
    pub adapter: Option<String>,
    /// Digest of the thresholds by which the lane is chosen.
    pub thresholds: String,
}

/// A replica that serves no requests.
#[derive(Serialize, ToSchema)]
pub struct DownReplica {
    /// Its number.
    pub replica: u32,
    /// Why it serves none.
    pub why: String,
}

/// Service levels of one lane.
#[derive(Serialize, ToSchema)]
pub struct LaneSlo {
    /// Name of the specialist.
    pub specialist: String,
    /// Its service levels.
    #[serde(flatten)]
    pub report: SloReport,
}

/// Service levels. Times are milliseconds.
#[derive(Serialize, ToSchema)]
pub struct SloReport {
    /// Window of the latencies, in seconds.
    pub latency_window_seconds: u64,
    /// Window of the rates, in seconds.
    pub rate_window_seconds: u64,
    /// Time from arrival to first token.
    pub ttft_ms: Percentiles,
    /// Time between tokens.
    pub itl_ms: Percentiles,
    /// Time from admission to first token.
    pub admission_to_first_token_ms: Percentiles,
    /// Compile checks that passed.
    pub compile_pass: Rate,
    /// Finished requests that were preempted at least once.
    pub preempted_once: Rate,
    /// Each target against what was measured.
    pub objectives: Objectives,
}

/// Percentiles, in milliseconds; `null` without a sample.
#[derive(Serialize, ToSchema)]
pub struct Percentiles {
    /// Number of samples.
    pub count: u64,
    /// Median.
    pub p50: Option<f64>,
    /// 95th percentile.
    pub p95: Option<f64>,
    /// 99th percentile.
    pub p99: Option<f64>,
}

/// A fraction of events.
#[derive(Serialize, ToSchema)]
pub struct Rate {
    /// Number of events with the property.
    pub count: u64,
    /// Number of all events.
    pub total: u64,
    /// `count / total`; `null` without an event.
    pub fraction: Option<f64>,
}

/// Objectives of a lane.
#[derive(Serialize, ToSchema)]
pub struct Objectives {
    /// 95th percentile of TTFT, in milliseconds.
    pub ttft: Objective,
    /// 95th percentile of ITL, in milliseconds.
    pub itl: Objective,
    /// Fraction of compile checks that pass.
    pub compile_pass: Objective,
}

/// One target, and what was measured.
#[derive(Serialize, ToSchema)]
pub struct Objective {
    /// Target; `null` if the lane promises nothing.
    pub target: Option<f64>,
    /// Measured value; `null` without a sample.
    pub measured: Option<f64>,
    /// Number of samples.
    pub samples: u64,
    /// Whether the target is met; `null` without a target, or with too few samples.
    pub met: Option<bool>,
}

/// All that the page of lanes shows.
#[derive(Serialize, ToSchema)]
pub struct EnsembleView {
    /// Name of the ensemble.
    pub ensemble: String,
    /// The specialist of requests that the router assigns to none.
    pub fallback: Option<String>,
    /// Version of the file that is in force.
    pub config: ConfigVersion,
    /// Level of escalation.
    pub escalation: EscalationStatus,
    /// Its lanes, in the order of the file.
    pub lanes: Vec<LaneView>,
    /// The last requests, the latest first.
    pub recent: Vec<RecentRequest>,
}

/// A lane on the page.
#[derive(Serialize, ToSchema)]
pub struct LaneView {
    /// State.
    #[serde(flatten)]
    pub status: LaneStatus,
    /// Description of the file.
    pub description: String,
    /// Path or repository of the model.
    pub model: String,
    /// Number of engines, of which `engines` live.
    pub replicas: usize,
    /// The specialist that serves while this one cannot.
    pub fallback: Option<String>,
    /// Number of running requests.
    pub running: usize,
    /// Number of waiting requests.
    pub waiting: usize,
    /// Fraction of KV blocks in use.
    pub kv_usage: f64,
    /// Routes since the start, by what decided.
    pub routes: BTreeMap<String, u64>,
    /// Its service levels.
    pub slo: SloReport,
}

/// A request that has ended. Times are in milliseconds.
#[derive(Serialize, ToSchema)]
pub struct RecentRequest {
    /// Its arrival, in UTC.
    pub time: String,
    /// Its id, as in the access log.
    pub request_id: String,
    /// Name of the specialist.
    pub specialist: String,
    /// Why it was routed there, as in `x-strata-route`.
    pub why: String,
    /// Status code of the response; 499 if the client disconnected before it.
    pub status: u16,
    /// Time from the head of the request to the end of the response.
    pub ms: f64,
    /// Time from the head of the request to the first token.
    pub ttft_ms: Option<f64>,
    /// Number of completion tokens.
    pub completion_tokens: usize,
}

/// A configuration that is in force.
#[derive(Serialize, ToSchema)]
pub struct Reloaded {
    /// Name of the ensemble.
    pub ensemble: String,
    /// Version of its file.
    pub config: ConfigVersion,
}

/// A configuration that was not loaded.
#[derive(Serialize, ToSchema)]
pub struct NotReloaded {
    /// The error, whose code is `needs_restart` or `invalid_configuration`.
    pub error: ErrorBody,
    /// Each problem, with its path in the file.
    pub problems: Vec<String>,
}
