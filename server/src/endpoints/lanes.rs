//! `GET` and `POST /strata/lanes`, `GET /strata/slo`: the lanes of the server, and what each of them promises.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use l6_ensemble::control::{LanePatch, LaneStatus};
use l6_ensemble::escalation::EscalationStatus;
use l6_ensemble::slo::SloReport;
use serde::Serialize;
use serde_json::{Map, Value};

use crate::LOG;
use crate::app::App;
use crate::ensemble::{Ensemble, FreshnessStatus};
use crate::error::ApiError;
use crate::json::{Body, FromBody, part};
use crate::lanes::{Lanes, ServedLane};
use crate::openapi::{ChangeErrors, KeyErrors};
use crate::overrides::FILE;
use crate::protocol::operator;
use crate::reload::ConfigVersion;

/// Service levels of one lane.
#[derive(Debug, Serialize)]
pub struct LaneSlo {
    specialist: String,
    #[serde(flatten)]
    report: SloReport,
}

/// Returns the service levels of each lane with their targets. They are never added up over lanes.
#[utoipa::path(get, path = "/strata/slo", security((), ("key" = [])), responses(
    (status = 200, description = "Service levels of each lane: latencies of the published window, rates of 24 hours, \
        and whether the targets are met", body = Vec<operator::LaneSlo>),
    KeyErrors,
))]
pub async fn slo(State(lanes): State<Lanes>) -> Json<Vec<LaneSlo>> {
    let of = |lane: &ServedLane| LaneSlo {
        specialist: lane.model().name().to_owned(),
        report: lane.metrics().slo().report(),
    };
    Json(lanes.iter().map(of).collect())
}

/// The lanes of an ensemble, and its escalation.
#[derive(Debug, Serialize)]
pub struct EnsembleStatus {
    ensemble: String,
    config: ConfigVersion,
    escalation: EscalationStatus,
    /// Number of shadows in flight.
    shadows_in_flight: usize,
    lanes: Vec<ServedLaneStatus>,
}

/// A replica that serves no requests.
#[derive(Debug, Serialize)]
struct DownReplica {
    replica: u32,
    why: String,
}

impl DownReplica {
    fn all(lane: &ServedLane) -> Vec<Self> {
        let down = lane.lane.replicas().filter_map(|(id, replica)| {
            Some(Self { replica: id.0, why: replica.ended()?.to_string() })
        });
        down.collect()
    }
}

/// State of a lane, its freshness, and its replicas that serve no requests.
#[derive(Debug, Serialize)]
pub struct ServedLaneStatus {
    #[serde(flatten)]
    status: LaneStatus,
    freshness: FreshnessStatus,
    down: Vec<DownReplica>,
}

/// Returns the state of each lane of an ensemble: engines, breaker, overrides, priority floor, freshness; and the level
/// of escalation.
///
/// # Errors
/// 404 without an ensemble.
#[utoipa::path(get, path = "/strata/lanes", security((), ("key" = [])), responses(
    (status = 200, description = "State of each lane, and of the escalation", body = operator::EnsembleStatus),
    (status = 404, description = "The server serves one model, without an ensemble",
        body = crate::error::ErrorResponse),
    KeyErrors,
))]
pub async fn get(State(lanes): State<Lanes>) -> Result<Json<EnsembleStatus>, ApiError> {
    Ok(Json(status(&lanes, ensemble(&lanes)?)))
}

/// Changes a lane of an ensemble, or holds its level of escalation.
///
/// # Errors
/// 403 on a server without API keys; 404 without an ensemble; 400 for an unknown lane or an invalid change.
#[utoipa::path(post, path = "/strata/lanes", request_body = operator::Change, security((), ("key" = [])), responses(
    (status = 200, description = "State after the change", body = operator::EnsembleStatus),
    ChangeErrors,
))]
pub async fn post(
    State(app): State<App>,
    Body(change, _memory): Body<Change>,
) -> Result<Json<EnsembleStatus>, ApiError> {
    needs_keys(&app, "Lanes can only be changed")?;
    let lanes = app.lanes.now();
    let ensemble = ensemble(&lanes)?;
    match change {
        Change::Lane(name, patch) => {
            let lane = lanes.index_of_model(&name).ok_or_else(|| {
                let names: Vec<&str> = lanes.iter().map(|lane| lane.model().name()).collect();
                let message = format!("`lane` must be one of {}", names.join(", "));
                ApiError::param("lane", message)
            })?;
            ensemble.patch(lane, &patch, BY).map_err(|why| ApiError::invalid(why.to_string()))?;
        }
        Change::Escalation(level) => {
            let pinned = ensemble.pin(level, BY);
            pinned.map_err(|why| ApiError::param("escalation_level", why.to_string()))?;
        }
    }
    keep(&app, ensemble).await;
    Ok(Json(status(&lanes, ensemble)))
}

/// What the log names as the cause of a change.
const BY: &str = "POST /strata/lanes";

/// Writes what operators have set to the file of `--state-dir`, if there is one. A change that cannot be written is in
/// force all the same.
async fn keep(app: &App, ensemble: &Arc<Ensemble>) {
    let Some(file) = app.overrides.clone() else { return };
    let ensemble = ensemble.clone();
    let stored = tokio::task::spawn_blocking(move || file.store(&ensemble)).await;
    let failed = match stored {
        Ok(Ok(())) => return,
        Ok(Err(why)) => why.to_string(),
        Err(why) => why.to_string(),
    };
    tracing::warn!(target: LOG, "{FILE} is not written, so a restart loses changes of lanes: {failed}");
}

/// A change: `{"lane": "debug", "breaker": "open"}`, or `{"escalation_level": 2}`, where `null` lets the load decide.
pub enum Change {
    /// Of a lane.
    Lane(String, LanePatch),
    /// Of the level of escalation.
    Escalation(Option<usize>),
}

impl FromBody for Change {
    fn from_body(body: &[u8]) -> Result<Self, ApiError> {
        let mut fields: Map<String, Value> = part(body)?;
        let lane = fields.remove("lane");
        match (lane, fields.remove("escalation_level")) {
            (Some(Value::String(lane)), None) => {
                let patch = serde_json::from_value(Value::Object(fields));
                let patch = patch.map_err(|why| {
                    ApiError::invalid(format!("The request body is invalid: {why}"))
                })?;
                Ok(Self::Lane(lane, patch))
            }
            (None, Some(level)) if fields.is_empty() => {
                let level: Option<usize> = serde_json::from_value(level).map_err(|_| {
                    let message = "`escalation_level` must be a whole number, 0 or above, or null";
                    ApiError::param("escalation_level", message)
                })?;
                Ok(Self::Escalation(level))
            }
            (Some(_), None) => Err(ApiError::param("lane", "`lane` must be a string")),
            _ => {
                let message = "The request body must have either `lane` and what to change of it, or \
                    `escalation_level` alone.";
                Err(ApiError::invalid(message))
            }
        }
    }
}

/// Checks that only who has a key can change the server. `what` says what they could do.
///
/// # Errors
/// 403.
pub(super) fn needs_keys(app: &App, what: &str) -> Result<(), ApiError> {
    if !app.options.api_keys.is_empty() {
        return Ok(());
    }
    let message = format!("{what} on a server with API keys: start it with --api-key.");
    let error = ApiError::new(StatusCode::FORBIDDEN, "invalid_request_error", message);
    Err(error.with_code("no_api_keys"))
}

/// The ensemble that is served.
///
/// # Errors
/// 404 without one.
pub(super) fn ensemble(lanes: &Lanes) -> Result<&Arc<Ensemble>, ApiError> {
    lanes.router().ok_or_else(|| {
        let message =
            "This server serves one model. Lanes belong to an ensemble: `strata serve --ensemble`.";
        ApiError::not_found(message).with_code("no_ensemble")
    })
}

fn status(lanes: &Lanes, ensemble: &Ensemble) -> EnsembleStatus {
    let of = |(at, lane)| ServedLaneStatus {
        status: ensemble.status(at, lane),
        freshness: ensemble.freshness(at),
        down: DownReplica::all(lane),
    };
    EnsembleStatus {
        ensemble: ensemble.config().name.clone(),
        config: ensemble.version().clone(),
        escalation: ensemble.escalation_status(),
        shadows_in_flight: ensemble.shadows().in_flight(),
        lanes: lanes.iter().enumerate().map(of).collect(),
    }
}
