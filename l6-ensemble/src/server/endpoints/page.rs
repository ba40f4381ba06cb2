//! `GET /`: a page to talk to the model and to watch the engine.
//!
//! Three files, held in the program: nothing is fetched from anywhere else, and the browser is told so
//! (Content-Security-Policy), which also means that no text of a model can ever become a script.

use axum::extract::Path;
use axum::extract::rejection::PathRejection;
use axum::http::header;
use axum::response::{IntoResponse, Response};

use crate::server::error::{ApiError, ErrorResponse};
use crate::server::openapi::Troubles;

/// The page.
#[utoipa::path(get, path = "/", responses(
    (status = 200, description = "The page", body = String, content_type = "text/html"),
    Troubles,
))]
pub async fn page() -> Response {
    served("text/html; charset=utf-8", include_str!("../page/index.html"))
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
pub async fn file(file: Result<Path<String>, PathRejection>) -> Result<Response, ApiError> {
    let Path(file) = file.map_err(|why| ApiError::invalid(why.body_text()))?;
    match file.as_str() {
        "style.css" => Ok(served("text/css; charset=utf-8", include_str!("../page/style.css"))),
        "page.js" => Ok(served("text/javascript; charset=utf-8", include_str!("../page/page.js"))),
        _ => Err(ApiError::not_found(format!("there is no file {file}"))),
    }
}

/// What a browser may do for the page: run its own script, and ask this server.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

fn served(kind: &'static str, text: &'static str) -> Response {
    let headers = [
        (header::CONTENT_TYPE, kind),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        // The next version of the program has other files under the same names.
        (header::CACHE_CONTROL, "no-cache"),
    ];
    (headers, text).into_response()
}
