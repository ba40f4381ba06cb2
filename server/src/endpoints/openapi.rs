//! `GET /openapi.json`.

use axum::Json;
use utoipa::OpenApi;

use crate::openapi::{CommonErrors, Document};

/// Returns the OpenAPI document.
#[utoipa::path(get, path = "/openapi.json", responses(
    (status = 200, description = "This document", body = Object),
    CommonErrors,
))]
pub async fn openapi() -> Json<utoipa::openapi::OpenApi> {
    Json(Document::openapi())
}
