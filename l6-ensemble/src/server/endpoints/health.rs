//! `GET /health`, `/ready` and `/version`: for whoever watches over processes.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;

use crate::server::app::Shared;
use crate::server::life;
use crate::server::openapi::Troubles;
use crate::server::protocol::models::Version;

/// 200 while the engine lives, 503 once it has failed.
#[utoipa::path(get, path = "/health", responses(
    (status = 200, description = "The engine lives"),
    (status = 503, description = "The engine has failed"),
))]
pub async fn health(State(app): State<Shared>) -> StatusCode {
    match app.life.state() {
        life::State::Failed => StatusCode::SERVICE_UNAVAILABLE,
        life::State::Serving | life::State::Draining => StatusCode::OK,
    }
}

/// 200 while requests are taken.
#[utoipa::path(get, path = "/ready", responses(
    (status = 200, description = "Requests are taken"),
    (status = 503, description = "They are not: the server is ending, or its engine has failed"),
))]
pub async fn ready(State(app): State<Shared>) -> StatusCode {
    match app.life.state() {
        life::State::Serving => StatusCode::OK,
        life::State::Draining | life::State::Failed => StatusCode::SERVICE_UNAVAILABLE,
    }
}

/// Which program this is.
#[utoipa::path(get, path = "/version", responses(
    (status = 200, description = "The version", body = Version),
    Troubles,
))]
pub async fn version() -> Json<Version> {
    Json(Version { version: env!("CARGO_PKG_VERSION") })
}
