//! Which pages may ask from a browser: none, unless the operator names their origins.

use axum::http::{HeaderName, HeaderValue, Method, header};
use tower_http::cors::{AllowHeaders, AllowOrigin, CorsLayer};

use super::name::REQUEST_ID;

/// What a page may read of a response besides its body.
const EXPOSED: [&str; 4] =
    ["x-strata-model", "x-strata-replica", "x-strata-queue-ms", "x-strata-cached-tokens"];

/// The layer that tells browsers so; `None` where browsers' own rule is right, which is that no other page may.
pub fn layer(origins: &[String]) -> Option<CorsLayer> {
    if origins.is_empty() {
        return None;
    }
    let allowed = if origins.iter().any(|origin| origin == "*") {
        AllowOrigin::any()
    } else {
        // What cannot be a header's value cannot be an origin.
        AllowOrigin::list(origins.iter().filter_map(|origin| HeaderValue::from_str(origin).ok()))
    };
    let exposed = EXPOSED.map(HeaderName::from_static);
    let exposed = exposed.into_iter().chain([REQUEST_ID, header::RETRY_AFTER]).collect::<Vec<_>>();
    Some(
        CorsLayer::new()
            .allow_origin(allowed)
            .allow_methods([Method::GET, Method::POST])
            .allow_headers(AllowHeaders::mirror_request())
            .expose_headers(exposed),
    )
}
