//! CORS: no other page may send requests from a browser, unless the operator names its origin.

use axum::http::{HeaderName, HeaderValue, Method, header};
use tower_http::cors::{AllowHeaders, AllowOrigin, CorsLayer};

use super::request_id::REQUEST_ID;
use crate::response_headers::{
    CACHED_TOKENS, LOADED_TOKENS, MODEL, QUEUE_MS, REPLICA, ROUTE, SHADOW, SLO_ITL, SLO_TTFT,
    SPECIALIST,
};

/// Response headers that a page may read.
const EXPOSED: [HeaderName; 10] = [
    MODEL,
    REPLICA,
    QUEUE_MS,
    CACHED_TOKENS,
    LOADED_TOKENS,
    SPECIALIST,
    ROUTE,
    SHADOW,
    SLO_TTFT,
    SLO_ITL,
];

/// CORS layer; `None` without origins.
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
    let exposed = EXPOSED.into_iter().chain([REQUEST_ID, header::RETRY_AFTER]).collect::<Vec<_>>();
    Some(
        CorsLayer::new()
            .allow_origin(allowed)
            .allow_methods([Method::GET, Method::POST])
            .allow_headers(AllowHeaders::mirror_request())
            .expose_headers(exposed),
    )
}
