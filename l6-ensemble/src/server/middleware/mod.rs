//! What happens to every request before an endpoint sees it, and to every response after.
//!
//! From outside to inside: [`watch`] names it and tells of it when it is over, [`cors`] answers browsers, a panic becomes
//! an error, [`host`] refuses pages that reach a local server under another name, [`key`] asks who it is, the gate asks
//! whether requests are taken, and a request's time begins.

pub mod access;
pub mod cors;
pub mod host;
pub mod key;
pub mod name;
pub mod record;
pub mod watch;

use std::any::Any;
use std::time::Instant;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::{Method, StatusCode, Uri};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use tokio::time::timeout_at;
use tower_http::catch_panic::CatchPanicLayer;

pub use name::RequestName;
pub use record::Record;

use super::app::Shared;
use super::error::{ApiError, quoted, unavailable};
use super::life;

/// Both groups of paths, behind what each needs: `api` wants a key where there are keys, `open` does not.
pub fn around(app: &Shared, api: Router<Shared>, open: Router<Shared>) -> Router<Shared> {
    let api = api
        .route_layer(from_fn_with_state(app.clone(), in_time))
        .route_layer(from_fn_with_state(app.clone(), gate))
        .route_layer(from_fn_with_state(app.clone(), key::check));
    let all = api.merge(open).fallback(no_such_path).method_not_allowed_fallback(no_such_method);
    let all = all.layer(from_fn_with_state(app.clone(), host::check));
    let all = all.layer(CatchPanicLayer::custom(panicked));
    let all = match cors::layer(&app.options.allowed_origins) {
        Some(cors) => all.layer(cors),
        None => all,
    };
    all.layer(from_fn_with_state(app.clone(), watch::request))
}

/// Whether requests are taken. What only looks is always allowed.
async fn gate(State(app): State<Shared>, request: Request, next: Next) -> Response {
    let asks = request.method() == Method::POST;
    match app.life.state() {
        life::State::Draining if asks => {
            let message = "the server is shutting down and takes no new requests: ask another one";
            unavailable(message, "draining").into_response()
        }
        life::State::Failed if asks => {
            let message = "the engine has failed and the server is about to end: ask another one";
            ApiError::internal(message).with_code("engine_failed").into_response()
        }
        _ => next.run(request).await,
    }
}

/// A request's time counts from its arrival: what it waits for before the engine has it is part of it. (What comes behind a
/// response's head is bounded by [`Answers`](super::answers::Answers).)
async fn in_time(State(app): State<Shared>, request: Request, next: Next) -> Response {
    let Some(within) = app.options.limits.request_timeout else { return next.run(request).await };
    let began = Record::current().map_or_else(Instant::now, |record| record.figures().began);
    match timeout_at((began + within).into(), next.run(request)).await {
        Ok(response) => response,
        Err(_) => ApiError::timeout().into_response(),
    }
}

async fn no_such_path(method: Method, uri: Uri) -> ApiError {
    let message = format!(
        "Unknown request URL: {method} {}. /openapi.json has all paths.",
        quoted(uri.path())
    );
    ApiError::new(StatusCode::NOT_FOUND, "invalid_request_error", message).with_code("unknown_url")
}

async fn no_such_method(method: Method, uri: Uri) -> ApiError {
    let message =
        format!("{method} is not allowed for {}: see the `allow` header.", quoted(uri.path()));
    let error = ApiError::new(StatusCode::METHOD_NOT_ALLOWED, "invalid_request_error", message);
    error.with_code("method_not_allowed")
}

/// A bug of ours is told as one, and hurts nobody else.
fn panicked(panic: Box<dyn Any + Send>) -> Response {
    let words = panic.downcast_ref::<&str>().copied();
    let words = words.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    tracing::error!("server: a handler panicked: {}", words.unwrap_or("without words"));
    ApiError::internal("this is a bug of the server's, and it goes on").into_response()
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
            panic!("a wheel came off")
        }
        let router: Router =
            Router::new().route("/", get(panics)).layer(CatchPanicLayer::custom(panicked));
        let request = Request::new(Body::empty());
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let response = runtime.block_on(router.oneshot(request)).unwrap();
        assert_eq!(response.status(), StatusCode::INTERNAL_SERVER_ERROR);
        assert_eq!(response.headers()["content-type"], "application/json");
    }
}
