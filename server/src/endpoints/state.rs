//! `GET /strata/state`: a snapshot of the server as JSON, for the page and for `curl`.

use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use serde::Deserialize;

use crate::error::{ApiError, ErrorResponse};
use crate::lanes::Lanes;
use crate::lifecycle::Lifecycle;
use crate::metrics::{Metrics, state};
use crate::openapi::KeyErrors;

/// Returns a snapshot of the server, and of one specialist in an ensemble: latencies of different specialists are never
/// added up.
///
/// # Errors
/// 400 for an unknown specialist.
#[utoipa::path(get, path = "/strata/state", params(StateQuery), security((), ("key" = [])), responses(
    (status = 200, description = "Snapshot of the server", body = state::State),
    (status = 400, description = "The specialist does not exist", body = ErrorResponse),
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
        None => 0,
    };
    Ok(Json(metrics.state(&lanes[lane], &lifecycle)))
}

/// Query of `/strata/state`.
#[derive(Debug, Default, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub struct StateQuery {
    /// Name of the specialist, in an ensemble. Default: the first one.
    specialist: Option<String>,
}
