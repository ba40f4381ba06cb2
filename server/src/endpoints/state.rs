//! `GET /strata/state`: a snapshot of the server as JSON, for the page and for `curl`.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;

use crate::app::ModelLane;
use crate::lifecycle::Lifecycle;
use crate::metrics::{Metrics, state};
use crate::openapi::KeyErrors;

/// Returns a snapshot of the server.
#[utoipa::path(get, path = "/strata/state", security((), ("key" = [])), responses(
    (status = 200, description = "Snapshot of the server", body = state::State),
    KeyErrors,
))]
pub async fn state(
    State(metrics): State<Arc<Metrics>>,
    State(lane): State<Arc<ModelLane>>,
    State(lifecycle): State<Arc<Lifecycle>>,
) -> Json<state::State> {
    Json(metrics.state(&lane, &lifecycle))
}
