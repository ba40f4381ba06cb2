//! `GET /metrics`: counts and times, in Prometheus' text format.

use axum::extract::State;
use axum::http::header;
use axum::response::IntoResponse;

use crate::server::app::Shared;

/// Everything that is counted.
pub async fn metrics(State(app): State<Shared>) -> impl IntoResponse {
    let text = app.metrics.render(&app);
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text)
}
