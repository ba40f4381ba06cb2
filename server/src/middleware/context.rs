//! Context of one HTTP request: its id, when it arrived, and figures that its response leaves behind for the access
//! log.

use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use axum::extract::FromRequestParts;
use axum::http::HeaderMap;
use axum::http::request::Parts;
use l5_scheduler::engine::ResponseTimes;
use l6_ensemble::ReplicaId;

use super::request_id::HttpRequestId;
use crate::lanes::Lanes;
use crate::routing::Routed;

/// Context of one HTTP request: an extension of every request, put there by the outermost middleware. Clones are the
/// same context: what a stream reports through one is seen by all.
#[derive(Clone, Debug)]
pub struct RequestContext(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    id: HttpRequestId,
    arrived: Instant,
    figures: Mutex<Figures>,
    route: OnceLock<RouteEntry>,
    /// Name of the lane that has a shadow of the request.
    shadow: OnceLock<String>,
    /// Code of the error with which the request ended.
    code: OnceLock<&'static str>,
}

/// The route of a request, for the access log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RouteEntry {
    /// Name of the model that serves the request.
    pub model: String,
    /// Why the router chose it. `None`: there is no router.
    pub why: Option<String>,
}

/// Figures of a request's response, all of its choices together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// Time that the first scheduled choice waited for its first step.
    pub queue: Option<Duration>,
    /// Time from the request's head to the first token.
    pub ttft: Option<Duration>,
    /// Number of the replica that serves the request.
    pub replica: Option<u32>,
    /// Tokens of prompts.
    pub prompt_tokens: usize,
    /// Tokens of completions.
    pub completion_tokens: usize,
    /// Tokens of prompts that were in the cache, of choices that have ended.
    pub cached_tokens: usize,
    /// Tokens of prompts that were loaded from a tier, which are among them.
    pub loaded_tokens: usize,
}

impl RequestContext {
    /// Context of a request whose head has just arrived.
    pub fn new(headers: &HeaderMap) -> Self {
        let id = HttpRequestId::of(headers);
        Self(Arc::new(Inner {
            id,
            arrived: Instant::now(),
            figures: Mutex::default(),
            route: OnceLock::new(),
            shadow: OnceLock::new(),
            code: OnceLock::new(),
        }))
    }

    /// Id of the request.
    pub fn id(&self) -> &HttpRequestId {
        &self.0.id
    }

    /// Moment at which the request's head was there.
    pub fn arrived(&self) -> Instant {
        self.0.arrived
    }

    fn lock(&self) -> MutexGuard<'_, Figures> {
        self.0.figures.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records the route of the request: a request has one.
    pub fn route(&self, lanes: &Lanes, routed: &Routed) {
        let model = lanes[routed.lane].model().name().to_owned();
        let _ = self.0.route.set(RouteEntry { model, why: routed.why.clone() });
    }

    /// Records that the request runs with a LoRA adapter, whose name is its model. Call it before the route is recorded.
    pub fn adapted(&self, name: &str) {
        let _ = self.0.route.set(RouteEntry { model: name.to_owned(), why: None });
    }

    /// The route, once it is known.
    pub fn routed(&self) -> Option<&RouteEntry> {
        self.0.route.get()
    }

    /// Records that a lane has a shadow of the request.
    pub fn shadowed(&self, lane: &str) {
        let _ = self.0.shadow.set(lane.to_owned());
    }

    /// Name of the lane that has a shadow of the request.
    pub fn shadow(&self) -> Option<&str> {
        self.0.shadow.get().map(String::as_str)
    }

    /// Records the code of the error with which the request ended.
    pub fn failed(&self, code: &'static str) {
        let _ = self.0.code.set(code);
    }

    /// Code of the error with which the request ended.
    pub fn failure(&self) -> Option<&'static str> {
        self.0.code.get().copied()
    }

    /// Counts the tokens of prompts that were submitted to a replica.
    pub fn count_prompt_tokens(&self, tokens: usize, replica: ReplicaId) {
        let mut figures = self.lock();
        figures.prompt_tokens += tokens;
        figures.replica = Some(replica.0);
    }

    /// Records that another replica serves the request.
    pub fn moved_to(&self, replica: ReplicaId) {
        self.lock().replica = Some(replica.0);
    }

    /// Counts new tokens of a choice, and at its end what was cached.
    pub fn count_output(&self, tokens: usize, times: &ResponseTimes, ended: bool) {
        let mut figures = self.lock();
        figures.completion_tokens += tokens;
        if ended {
            figures.cached_tokens += times.cached;
            figures.loaded_tokens += times.loaded;
        }
        if let Some(at) = times.scheduled {
            figures.queue.get_or_insert(at.saturating_duration_since(times.submitted));
        }
        if let Some(at) = times.first {
            figures.ttft.get_or_insert(at.saturating_duration_since(self.arrived()));
        }
    }

    /// The figures so far.
    pub fn figures(&self) -> Figures {
        *self.lock()
    }
}

impl<S: Sync> FromRequestParts<S> for RequestContext {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        // A router without the outermost middleware, as in a test, has no context yet.
        let known = parts.extensions.get::<Self>().cloned();
        Ok(known.unwrap_or_else(|| Self::new(&parts.headers)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_clone_counts_is_seen_by_all() {
        let context = RequestContext::new(&HeaderMap::new());
        let stream = context.clone();
        stream.count_prompt_tokens(5, ReplicaId(2));
        let submitted = context.arrived();
        let ms = |ms| submitted + Duration::from_millis(ms);
        let (scheduled, first) = (Some(ms(2)), Some(ms(7)));
        let times = ResponseTimes { submitted, scheduled, first, last: None, cached: 3, loaded: 2 };
        stream.count_output(1, &times, false);
        // Of several choices the first to be scheduled counts.
        let later = ResponseTimes { scheduled: Some(ms(4)), first: Some(ms(9)), ..times };
        stream.count_output(2, &later, true);
        let expected = Figures {
            queue: Some(Duration::from_millis(2)),
            ttft: Some(Duration::from_millis(7)),
            replica: Some(2),
            prompt_tokens: 5,
            completion_tokens: 3,
            cached_tokens: 3,
            loaded_tokens: 2,
        };
        assert_eq!(context.figures(), expected);
    }
}
