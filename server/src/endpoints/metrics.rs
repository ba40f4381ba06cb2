//! `GET /metrics`, in Prometheus' text format.

use std::sync::Arc;

use axum::extract::State;
use axum::http::header;
use axum::response::IntoResponse;

use crate::lanes::Lanes;
use crate::lifecycle::Lifecycle;
use crate::metrics::Metrics;
use crate::openapi::CommonErrors;

/// Renders all metrics.
#[utoipa::path(get, path = "/metrics", responses(
    (status = 200, description = "All metrics", body = String, content_type = "text/plain"),
    CommonErrors,
))]
pub async fn metrics(
    State(metrics): State<Arc<Metrics>>,
    State(lanes): State<Lanes>,
    State(lifecycle): State<Arc<Lifecycle>>,
) -> impl IntoResponse {
    let text = metrics.render(&lanes, &lifecycle);
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text)
}
