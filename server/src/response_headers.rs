//! Headers of a response: specialist, replica, time in the queue, cached tokens.
//!
//! ```text
//! x-strata-specialist: debug      the specialist that serves the request, in an ensemble; also of one that is refused
//! x-strata-route: rule ...        why the router chose it
//! x-strata-shadow: memory         the specialist for which a shadow of the request is planned, if there is one
//! x-strata-slo-ttft-p95-ms: 310   TTFT of the specialist: 95th percentile of the last minutes, this request not included
//! x-strata-slo-itl-p95-ms: 42     its ITL
//! x-strata-model: tiny            the name in responses
//! x-strata-replica: 0             the replica's number
//! x-strata-queue-ms: 3            from arrival at the engine to the first step, the wait for an adapter included
//! x-strata-cached-tokens: 1024    tokens of the prompt that did not have to be computed
//! x-strata-loaded-tokens: 768     those of them that were loaded from a tier
//! ```

use axum::http::{HeaderMap, HeaderName, HeaderValue};

use super::lanes::ServedLane;
use super::middleware::context::RouteEntry;
use super::responses::ResponseStreams;
use super::routing::Routed;

/// Name of the model.
pub const MODEL: HeaderName = HeaderName::from_static("x-strata-model");
/// Number of the replica.
pub const REPLICA: HeaderName = HeaderName::from_static("x-strata-replica");
/// Milliseconds between the request's arrival and its first step.
pub const QUEUE_MS: HeaderName = HeaderName::from_static("x-strata-queue-ms");
/// Number of cached prompt tokens.
pub const CACHED_TOKENS: HeaderName = HeaderName::from_static("x-strata-cached-tokens");

/// Number of prompt tokens that were loaded from a tier.
pub const LOADED_TOKENS: HeaderName = HeaderName::from_static("x-strata-loaded-tokens");

/// Name of the specialist.
pub const SPECIALIST: HeaderName = HeaderName::from_static("x-strata-specialist");
/// 95th percentile of the specialist's TTFT in the published window, in milliseconds.
pub const SLO_TTFT: HeaderName = HeaderName::from_static("x-strata-slo-ttft-p95-ms");
/// 95th percentile of its ITL.
pub const SLO_ITL: HeaderName = HeaderName::from_static("x-strata-slo-itl-p95-ms");
/// Why the router chose it.
pub const ROUTE: HeaderName = HeaderName::from_static("x-strata-route");

/// Name of the specialist for which a shadow of the request is planned.
pub const SHADOW: HeaderName = HeaderName::from_static("x-strata-shadow");

/// Adds the headers of a route, also to a refusal and to a failure.
pub fn add_route(headers: &mut HeaderMap, route: &RouteEntry) {
    let Some(why) = &route.why else { return };
    for (name, text) in [(SPECIALIST, &route.model), (ROUTE, why)] {
        if let Ok(text) = HeaderValue::from_bytes(text.as_bytes()) {
            headers.insert(name, text);
        }
    }
}

/// Headers of a response whose first output is there, but for those of [`add_route`].
pub fn headers(lane: &ServedLane, routed: &Routed, responses: &ResponseStreams) -> HeaderMap {
    let model = lane.model();
    let mut headers = HeaderMap::new();
    // A text that is not a valid header value is left out.
    let mut insert = |name: HeaderName, text: &str| {
        if let Ok(text) = HeaderValue::from_bytes(text.as_bytes()) {
            headers.insert(name, text);
        }
    };
    insert(MODEL, model.name());
    if routed.why.is_some() {
        routed.shadow.iter().for_each(|name| insert(SHADOW, name));
        let report = lane.metrics().slo().report();
        for (name, p95) in [(SLO_TTFT, report.ttft_ms.p95), (SLO_ITL, report.itl_ms.p95)] {
            if let Some(ms) = p95 {
                insert(name, &format!("{ms:.0}"));
            }
        }
    }
    headers.insert(REPLICA, responses.replica().0.into());
    if let Some(queued) = responses.queued() {
        headers.insert(QUEUE_MS, u64::try_from(queued.as_millis()).unwrap_or(u64::MAX).into());
    }
    headers.insert(CACHED_TOKENS, responses.cached().into());
    headers.insert(LOADED_TOKENS, responses.loaded().into());
    headers
}
