//! Middleware: layers around every endpoint.
//!
//! From outside to inside: [`watch`] creates the request's context and logs its end, [`cors`] handles preflight
//! requests of browsers, a panic becomes an error, [`host`] rejects pages that reach a local server under another name,
//! [`key`] checks the API key, the gate checks whether requests are accepted, and the request timeout applies.

pub mod access_log;
pub mod context;
pub mod cors;
pub mod host;
pub mod key;
pub mod request_id;
pub mod watch;

use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::{Method, StatusCode, Uri};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use tokio::time::timeout_at;
use tower_http::catch_panic::CatchPanicLayer;

pub use context::RequestContext;
pub use request_id::HttpRequestId;

use super::app::App;
use super::error::{ApiError, quoted, unavailable};
use super::lifecycle::{self, Lifecycle};

/// Puts the middleware around both groups of paths: `api` needs a key where there are keys, `open` does not.
pub fn around(app: &App, api: Router<App>, open: Router<App>) -> Router<App> {
    let api = api
        .route_layer(from_fn_with_state(app.limits.request_timeout, in_time))
        .route_layer(from_fn_with_state(app.lifecycle.clone(), gate))
        .route_layer(from_fn_with_state(app.keys.clone(), key::check));
    let all = api.merge(open).fallback(unknown_path).method_not_allowed_fallback(unknown_method);
    let all = all.layer(from_fn_with_state(app.hosts.clone(), host::check));
    let all = all.layer(CatchPanicLayer::custom(panic_response));
    let all = match cors::layer(&app.options.allowed_origins) {
        Some(cors) => all.layer(cors),
        None => all,
    };
    let (lifecycle, metrics) = (app.lifecycle.clone(), app.metrics.clone());
    all.layer(from_fn_with_state(watch::Watcher { lifecycle, metrics }, watch::request))
}

/// Rejects requests that are not accepted at the moment. Requests that only read are always accepted.
async fn gate(State(lifecycle): State<Arc<Lifecycle>>, request: Request, next: Next) -> Response {
    let submits = request.method() == Method::POST;
    match lifecycle.state() {
        lifecycle::State::Draining if submits => {
            let message =
                "The server is shutting down and accepts no new requests. Retry on another server.";
            unavailable(message, "draining").into_response()
        }
        lifecycle::State::Failed if submits => {
            let message =
                "The engine has failed and the server is shutting down. Retry on another server.";
            ApiError::internal(message).with_code("engine_failed").into_response()
        }
        _ => next.run(request).await,
    }
}

/// Applies the request timeout, from the request's arrival to the head of its response.
/// [`ResponseStreams`](super::responses::ResponseStreams) applies it to the body.
async fn in_time(
    State(timeout): State<Option<Duration>>,
    context: RequestContext,
    request: Request,
    next: Next,
) -> Response {
    let Some(timeout) = timeout else { return next.run(request).await };
    match timeout_at((context.arrived() + timeout).into(), next.run(request)).await {
        Ok(response) => response,
        Err(_) => ApiError::timeout().into_response(),
    }
}

async fn unknown_path(method: Method, uri: Uri) -> ApiError {
    let message = format!(
        "Unknown request URL: {method} {}. Please check the URL for typos; /openapi.json lists all paths.",
        quoted(uri.path())
    );
    ApiError::new(StatusCode::NOT_FOUND, "invalid_request_error", message).with_code("unknown_url")
}

async fn unknown_method(method: Method, uri: Uri) -> ApiError {
    let message = format!(
        "Method {method} is not allowed for {}. The `allow` header lists those that are.",
        quoted(uri.path())
    );
    let error = ApiError::new(StatusCode::METHOD_NOT_ALLOWED, "invalid_request_error", message);
    error.with_code("method_not_allowed")
}

/// Turns a panic of a handler into a response.
fn panic_response(panic: Box<dyn Any + Send>) -> Response {
    let message = panic.downcast_ref::<&str>().copied();
    let message = message.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    tracing::error!("server: a handler panicked: {}", message.unwrap_or("no message"));
    ApiError::internal(
        "Internal server error: a bug of the server. Other requests are not affected.",
    )
    .into_response()
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::body::Body;
    use axum::routing::get;
    use tower::ServiceExt;

    #[test]
    fn a_panic_is_an_error_like_any_other() {
        async fn panics() -> &'static str {
            panic!("test panic")
        }
        let router: Router =
            Router::new().route("/", get(panics)).layer(CatchPanicLayer::custom(panic_response));
        let request = Request::new(Body::empty());
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let response = runtime.block_on(router.oneshot(request)).unwrap();
        assert_eq!(response.status(), StatusCode::INTERNAL_SERVER_ERROR);
        assert_eq!(response.headers()["content-type"], "application/json");
    }
}
