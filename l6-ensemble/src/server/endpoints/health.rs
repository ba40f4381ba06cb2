//! `GET /health`, `/ready` and `/version`: for whoever watches over processes.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;

use crate::server::app::Shared;
use crate::server::life;
use crate::server::protocol::models::Version;

/// 200 while the engine lives, 503 once it has failed.
pub async fn health(State(app): State<Shared>) -> StatusCode {
    match app.life.state() {
        life::State::Failed => StatusCode::SERVICE_UNAVAILABLE,
        life::State::Serving | life::State::Draining => StatusCode::OK,
    }
}

/// 200 while requests are taken.
pub async fn ready(State(app): State<Shared>) -> StatusCode {
    match app.life.state() {
        life::State::Serving => StatusCode::OK,
        life::State::Draining | life::State::Failed => StatusCode::SERVICE_UNAVAILABLE,
    }
}

/// Which program this is.
pub async fn version() -> Json<Version> {
    Json(Version { version: env!("CARGO_PKG_VERSION") })
}
