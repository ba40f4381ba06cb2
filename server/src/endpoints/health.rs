//! `GET /health`, `/ready` and `/version`: probes.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;

use crate::lifecycle::{self, Lifecycle};
use crate::openapi::CommonErrors;
use crate::protocol::models::Version;

/// Returns 200 while a replica of the lane lives, 503 once the lane has failed.
#[utoipa::path(get, path = "/health", responses(
    (status = 200, description = "A replica lives"),
    (status = 503, description = "All replicas have failed"),
))]
pub async fn health(State(lifecycle): State<Arc<Lifecycle>>) -> StatusCode {
    match lifecycle.state() {
        lifecycle::State::Failed => StatusCode::SERVICE_UNAVAILABLE,
        lifecycle::State::Serving | lifecycle::State::Draining => StatusCode::OK,
    }
}

/// Returns 200 while requests are accepted.
#[utoipa::path(get, path = "/ready", responses(
    (status = 200, description = "Requests are accepted"),
    (status = 503, description = "Requests are not accepted: the server is shutting down, or its engine has failed"),
))]
pub async fn ready(State(lifecycle): State<Arc<Lifecycle>>) -> StatusCode {
    match lifecycle.state() {
        lifecycle::State::Serving => StatusCode::OK,
        lifecycle::State::Draining | lifecycle::State::Failed => StatusCode::SERVICE_UNAVAILABLE,
    }
}

/// Version of the program.
#[utoipa::path(get, path = "/version", responses(
    (status = 200, description = "The version", body = Version),
    CommonErrors,
))]
pub async fn version() -> Json<Version> {
    Json(Version { version: env!("CARGO_PKG_VERSION") })
}
