//! `GET /openapi.json`.

use axum::Json;
use utoipa::OpenApi;

use crate::server::openapi::{Document, Troubles};

/// The document.
#[utoipa::path(get, path = "/openapi.json", responses(
    (status = 200, description = "This document", body = Object),
    Troubles,
))]
pub async fn openapi() -> Json<utoipa::openapi::OpenApi> {
    Json(Document::openapi())
}
