//! `GET /`: a page to chat with the model and to watch the engine. `GET /lanes`: a page to watch the lanes of an
//! ensemble.
//!
//! A few files that are part of the program. The Content-Security-Policy allows nothing from elsewhere, so no output
//! of a model can become a script.

use axum::extract::Path;
use axum::extract::rejection::PathRejection;
use axum::http::header;
use axum::response::{IntoResponse, Response};

use crate::error::{ApiError, ErrorResponse, quoted};
use crate::openapi::CommonErrors;

/// The page.
#[utoipa::path(get, path = "/", responses(
    (status = 200, description = "The page", body = String, content_type = "text/html"),
    CommonErrors,
))]
pub async fn page() -> Response {
    served("text/html; charset=utf-8", include_str!("../page/index.html"))
}

/// The page of lanes.
#[utoipa::path(get, path = "/lanes", responses(
    (status = 200, description = "The page of lanes", body = String, content_type = "text/html"),
    CommonErrors,
))]
pub async fn lanes() -> Response {
    served("text/html; charset=utf-8", include_str!("../page/lanes.html"))
}

/// A file of the pages: a script or the style.
///
/// # Errors
/// 404 for any other name.
#[utoipa::path(get, path = "/page/{file}", params(("file" = String, Path, description = "Name of the file")), responses(
    (status = 200, description = "The file", content(
        (String = "text/css"),
        (String = "text/javascript"),
    )),
    (status = 404, description = "The page has no such file", body = ErrorResponse),
    CommonErrors,
))]
pub async fn file(file: Result<Path<String>, PathRejection>) -> Result<Response, ApiError> {
    let Path(file) = file.map_err(|why| ApiError::invalid(why.body_text()))?;
    let (kind, text) = match file.as_str() {
        "style.css" => (CSS, include_str!("../page/style.css")),
        "lanes.css" => (CSS, include_str!("../page/lanes.css")),
        "common.js" => (SCRIPT, include_str!("../page/common.js")),
        "page.js" => (SCRIPT, include_str!("../page/page.js")),
        "lanes.js" => (SCRIPT, include_str!("../page/lanes.js")),
        _ => {
            let message = format!("The page has no file `{}`.", quoted(&file));
            return Err(ApiError::not_found(message));
        }
    };
    Ok(served(kind, text))
}

const CSS: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";

/// Content-Security-Policy: the page's own script and style, and requests to this server.
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
