//! `GET /`: a page to talk to the model and to watch the engine.

use axum::extract::Path;
use axum::response::Html;

use crate::server::error::{ApiError, ErrorResponse};
use crate::server::openapi::Troubles;

/// The page.
#[utoipa::path(get, path = "/", responses(
    (status = 200, description = "The page", body = String, content_type = "text/html"),
    Troubles,
))]
pub async fn page() -> Html<&'static str> {
    Html("<!doctype html><title>Strata</title>")
}

/// What it needs beside itself.
///
/// # Errors
/// 404 for what it does not.
#[utoipa::path(get, path = "/page/{file}", params(("file" = String, Path, description = "Its name")), responses(
    (status = 200, description = "The file", content(
        (String = "text/css"),
        (String = "text/javascript"),
    )),
    (status = 404, description = "There is none of that name", body = ErrorResponse),
    Troubles,
))]
pub async fn file(Path(file): Path<String>) -> Result<(), ApiError> {
    Err(ApiError::not_found(format!("there is no file {file}")))
}
