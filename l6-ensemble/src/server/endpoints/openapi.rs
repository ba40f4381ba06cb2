//! `GET /openapi.json`.

use axum::Json;
use utoipa::OpenApi;

use crate::server::openapi::Document;

/// The document.
pub async fn openapi() -> Json<utoipa::openapi::OpenApi> {
    Json(Document::openapi())
}
