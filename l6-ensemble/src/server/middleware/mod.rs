//! What happens to every request before an endpoint sees it, and to every response after.
//!
//! From outside to inside: [`watch`] names it and tells of it when it is over, [`cors`] answers browsers, a panic becomes
//! an error, [`key`] asks who it is, and the gate asks whether requests are taken.

pub mod access;
pub mod cors;
pub mod key;
pub mod name;
pub mod record;
pub mod watch;

use std::any::Any;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::{Method, StatusCode, Uri};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use tower_http::catch_panic::CatchPanicLayer;

pub use name::RequestName;
pub use record::Record;

use super::app::Shared;
use super::error::{ApiError, unavailable};
use super::life;

/// Both groups of paths, behind what each needs: `api` wants a key where there are keys, `open` does not.
pub fn around(app: &Shared, api: Router<Shared>, open: Router<Shared>) -> Router<Shared> {
    let api = api
        .route_layer(from_fn_with_state(app.clone(), gate))
        .route_layer(from_fn_with_state(app.clone(), key::check));
    let all = api.merge(open).fallback(no_such_path).method_not_allowed_fallback(no_such_method);
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

async fn no_such_path(method: Method, uri: Uri) -> ApiError {
    let message =
        format!("Unknown request URL: {method} {}. /openapi.json has all paths.", uri.path());
    ApiError::new(StatusCode::NOT_FOUND, "invalid_request_error", message).with_code("unknown_url")
}

async fn no_such_method(method: Method, uri: Uri) -> ApiError {
    let message =
        format!("{} does not know {method}: the `allow` header has what it knows.", uri.path());
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
