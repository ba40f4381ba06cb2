//! `GET /strata/ensemble`: all that the page of lanes shows. `POST /strata/reload`: loads the configuration again.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use l6_ensemble::control::LaneStatus;
use l6_ensemble::escalation::EscalationStatus;
use l6_ensemble::slo::SloReport;
use serde::Serialize;

use super::lanes::{ensemble, needs_keys};
use crate::app::App;
use crate::ensemble::Ensemble;
use crate::error::{ApiError, ErrorCode, ErrorResponse};
use crate::lanes::{Lanes, ServedLane};
use crate::lifecycle::Lifecycle;
use crate::metrics::Metrics;
use crate::openapi::{KeyErrors, OperatorErrors};
use crate::protocol::operator;
use crate::recent::RecentRequest;
use crate::reload::{ConfigVersion, ReloadError};

/// The ensemble at this moment.
#[derive(Debug, Serialize)]
pub struct EnsembleView {
    ensemble: String,
    /// The specialist of requests that the router assigns to none.
    fallback: Option<String>,
    config: ConfigVersion,
    escalation: EscalationStatus,
    lanes: Vec<LaneView>,
    /// The last requests, the latest first.
    recent: Vec<RecentRequest>,
}

/// A lane at this moment.
#[derive(Debug, Serialize)]
pub struct LaneView {
    #[serde(flatten)]
    status: LaneStatus,
    description: String,
    /// Path or repository of the model.
    model: String,
    /// Number of engines, of which `engines` live.
    replicas: usize,
    /// The specialist that serves while this one cannot.
    fallback: Option<String>,
    running: usize,
    waiting: usize,
    /// Fraction of KV blocks in use.
    kv_usage: f64,
    /// Routes since the start, by what decided.
    routes: BTreeMap<&'static str, u64>,
    slo: SloReport,
}

/// Returns all that the page of lanes shows: each lane with its load, breaker, routes and service levels; the level of
/// escalation; and the last requests with specialist and reason. No text of a request is in it.
///
/// # Errors
/// 404 without an ensemble.
#[utoipa::path(get, path = "/strata/ensemble", security((), ("key" = [])), responses(
    (status = 200, description = "The ensemble at this moment", body = operator::EnsembleView),
    (status = 404, description = "The server serves one model, without an ensemble", body = ErrorResponse),
    KeyErrors,
))]
pub async fn get(
    State(lanes): State<Lanes>,
    State(metrics): State<Arc<Metrics>>,
    State(lifecycle): State<Arc<Lifecycle>>,
) -> Result<Json<EnsembleView>, ApiError> {
    let ensemble = ensemble(&lanes)?;
    let lane = |(at, served): (usize, &ServedLane)| {
        let state = metrics.state(served, &lifecycle);
        let specialist = ensemble.config().specialists.get(at);
        LaneView {
            status: ensemble.status(at, served),
            description: specialist.map(|own| own.description.clone()).unwrap_or_default(),
            model: served.model().root.clone(),
            replicas: served.lane.replicas().count(),
            fallback: specialist.and_then(|own| own.fallback.clone()),
            running: state.requests.running,
            waiting: state.requests.waiting,
            kv_usage: state.kv.usage,
            routes: ensemble.counters().of(at).collect(),
            slo: served.metrics().slo().report(),
        }
    };
    Ok(Json(EnsembleView {
        ensemble: ensemble.config().name.clone(),
        fallback: ensemble.config().fallback.clone(),
        config: ensemble.version().clone(),
        escalation: ensemble.escalation_status(),
        lanes: lanes.iter().enumerate().map(lane).collect(),
        recent: metrics.recent().all(),
    }))
}

/// A configuration that is in force.
#[derive(Debug, Serialize)]
pub struct Reloaded {
    ensemble: String,
    config: ConfigVersion,
}

impl From<&Ensemble> for Reloaded {
    fn from(ensemble: &Ensemble) -> Self {
        Self { ensemble: ensemble.config().name.clone(), config: ensemble.version().clone() }
    }
}

/// A configuration that was not loaded: OpenAI's error, and each problem by itself.
#[derive(Debug, Serialize)]
struct NotReloaded {
    #[serde(flatten)]
    error: ErrorResponse,
    problems: Vec<String>,
}

/// Loads the configuration of the ensemble again, as SIGHUP does. Requests in flight keep the version with which they
/// were routed.
///
/// # Errors
/// 403 on a server without API keys; 404 without an ensemble; 400 with every problem of the file. Then nothing has
/// changed.
#[utoipa::path(post, path = "/strata/reload", security((), ("key" = [])), responses(
    OperatorErrors,
    (status = 200, description = "The version that is in force", body = operator::Reloaded),
    (status = 400, description = "The file is invalid, or a change needs other engines: `problems` has each one",
        body = operator::NotReloaded),
))]
pub async fn reload(State(app): State<App>) -> Result<Response, ApiError> {
    needs_keys(&app, "The configuration can only be loaded again")?;
    let lanes = app.lanes.now();
    ensemble(&lanes)?;
    let Some(reloader) = &app.reloader else {
        return Err(ApiError::not_found("This server cannot load its configuration again."));
    };
    match reloader.reload("POST /strata/reload").await {
        Ok(lanes) => Ok(Json(Reloaded::from(&**ensemble(&lanes)?)).into_response()),
        Err(why) => Ok(refused(&why)),
    }
}

fn refused(why: &ReloadError) -> Response {
    let code = match why.outcome() {
        "needs_restart" => "needs_restart",
        _ => "invalid_configuration",
    };
    let message = format!("The configuration has not changed: {why}");
    let error = ApiError::invalid(message).with_code(code).body();
    let body = Json(NotReloaded { error, problems: why.problems() });
    (StatusCode::BAD_REQUEST, Extension(ErrorCode(code)), body).into_response()
}
