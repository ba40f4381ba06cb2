//! `GET /`: a page to talk to the model and to watch the engine.

use axum::extract::Path;
use axum::response::Html;

use crate::server::error::ApiError;

/// The page.
pub async fn page() -> Html<&'static str> {
    Html("<!doctype html><title>Strata</title>")
}

/// What it needs beside itself.
///
/// # Errors
/// 404 for what it does not.
pub async fn file(Path(file): Path<String>) -> Result<(), ApiError> {
    Err(ApiError::not_found(format!("there is no file {file}")))
}
