//! `GET /metrics`: counts and times, in Prometheus' text format.

use axum::extract::State;
use axum::http::header;
use axum::response::IntoResponse;

use crate::server::app::Shared;
use crate::server::openapi::Troubles;

/// Everything that is counted.
#[utoipa::path(get, path = "/metrics", responses(
    (status = 200, description = "Everything that is counted", body = String, content_type = "text/plain"),
    Troubles,
))]
pub async fn metrics(State(app): State<Shared>) -> impl IntoResponse {
    let text = app.metrics.render(&app);
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text)
}
