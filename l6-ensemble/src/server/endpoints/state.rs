//! `GET /strata/state`: the server at one glance, for the page and for people with `curl`.

use axum::Json;
use axum::extract::State;

use crate::server::app::Shared;
use crate::server::metrics::state;
use crate::server::openapi::KeyTroubles;

/// The server at one glance.
#[utoipa::path(get, path = "/strata/state", security((), ("key" = [])), responses(
    (status = 200, description = "The server at one glance", body = state::State),
    KeyTroubles,
))]
pub async fn state(State(app): State<Shared>) -> Json<state::State> {
    Json(app.metrics.state(&app))
}
