//! `GET /strata/state`: a snapshot of the server as JSON, for the page and for `curl`.

use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use serde::Deserialize;

use crate::adapters::Adapters;
use crate::error::{ApiError, ErrorResponse};
use crate::lanes::Lanes;
use crate::lifecycle::Lifecycle;
use crate::metrics::{Metrics, state};
use crate::openapi::KeyErrors;

/// Returns a snapshot of the server and, in an ensemble, of one specialist, which `model` of the response names: latencies
/// of different specialists are never added up. Without a query it is the first one; `specialists` has the names of all.
///
/// # Errors
/// 404 for an unknown `model`, and 400 for an unknown `specialist`.
#[utoipa::path(get, path = "/strata/state", params(StateQuery), security((), ("key" = [])), responses(
    (status = 200, description = "Snapshot of the server", body = state::State),
    (status = 400, description = "The `specialist` does not exist", body = ErrorResponse),
    (status = 404, description = "The `model` does not exist", body = ErrorResponse),
    KeyErrors,
))]
pub async fn state(
    State(metrics): State<Arc<Metrics>>,
    State(lanes): State<Lanes>,
    State(lifecycle): State<Arc<Lifecycle>>,
    query: Result<Query<StateQuery>, QueryRejection>,
) -> Result<Json<state::State>, ApiError> {
    let Query(query) = query.map_err(|why| ApiError::invalid(why.body_text()))?;
    let lane = match &query.specialist {
        Some(name) => lanes.of_specialist(name)?,
        // The name of the ensemble is that of no lane.
        None => lanes.of_model(query.model.as_deref())?.unwrap_or_default(),
    };
    let specialists = match lanes.router() {
        Some(_) => lanes.iter().map(|lane| lane.model().name().to_owned()).collect(),
        None => Vec::new(),
    };
    let mut state = state::State { specialists, ..metrics.state(&lanes[lane], &lifecycle) };
    // Those that wait for their adapter are not in the queue of the engine yet.
    state.requests.waiting += lanes.adapters().map_or(0, Adapters::num_waiting);
    Ok(Json(state))
}

/// Query of `/strata/state`.
#[derive(Debug, Default, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub struct StateQuery {
    /// Name of the specialist, in an ensemble, or of the model. Default: the first specialist.
    model: Option<String>,
    /// Name of the specialist, in an ensemble. Takes precedence over `model`.
    specialist: Option<String>,
}
