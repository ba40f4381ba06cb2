//! What happens to every request before an endpoint sees it, and to every response after.

pub mod name;

use axum::Router;
use axum::extract::Request;
use axum::middleware::{Next, from_fn};
use axum::response::Response;

pub use name::RequestName;

use super::app::Shared;

/// Both groups of paths, behind what each needs: `api` wants a key where there are keys, `open` does not.
pub fn around(app: &Shared, api: Router<Shared>, open: Router<Shared>) -> Router<Shared> {
    let _ = app;
    api.merge(open).layer(from_fn(named))
}

/// Every request has a name, and its response tells it.
async fn named(mut request: Request, next: Next) -> Response {
    let name = RequestName::of(request.headers());
    let header = name.header();
    request.extensions_mut().insert(name);
    let mut response = next.run(request).await;
    if let Some(header) = header {
        response.headers_mut().insert(name::REQUEST_ID, header);
    }
    response
}
