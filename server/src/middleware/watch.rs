//! The outermost middleware: a request's id, its span, its count among those in flight, and its line in the access log.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::SystemTime;

use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderValue, Method, header};
use axum::middleware::Next;
use axum::response::Response;
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use tracing::{Instrument, Span};

use super::access_log::{AccessLogger, Line, ms, rfc3339};
use super::context::{RequestContext, RouteEntry};
use super::request_id::REQUEST_ID;
use crate::error::ErrorCode;
use crate::lifecycle::{self, Counted, Lifecycle};
use crate::listen::Client;
use crate::metrics::{HttpRequestMetrics, Metrics};
use crate::recent::RecentRequest;
use crate::response_headers;

/// Status of a request whose client disconnected before the response, as in nginx.
const CLIENT_GONE: u16 = 499;

/// Parts of the server that the outermost middleware uses. Clones share them.
#[derive(Clone)]
pub struct Watcher {
    /// Counts requests in flight.
    pub lifecycle: Arc<Lifecycle>,
    /// Counts requests and times them.
    pub metrics: Arc<Metrics>,
}

/// Watches over a request from its head to the end of its response.
pub async fn request(State(watcher): State<Watcher>, mut request: Request, next: Next) -> Response {
    let Watcher { lifecycle, metrics } = watcher;
    // Before the gate checks the state, so that a drain waits for every request that passes.
    let in_flight = lifecycle.requests().enter();
    let context = RequestContext::new(request.headers());
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let span = tracing::info_span!("request", id = %context.id().0, %method, %path);
    let mut watch = Watch {
        log: request.extensions().get::<AccessLogger>().cloned().unwrap_or_default(),
        client: request.extensions().get::<Client>().copied(),
        method,
        path,
        at: SystemTime::now(),
        context: context.clone(),
        span: span.clone(),
        status: CLIENT_GONE,
        complete: false,
        metrics: metrics.begin_request(&request, CLIENT_GONE),
        all: metrics,
        _in_flight: in_flight,
    };
    let header = context.id().header();
    request.extensions_mut().insert(context);
    let mut response = next.run(request).instrument(span).await;
    watch.status = response.status().as_u16();
    watch.metrics.record_response(&response);
    if let Some(ErrorCode(code)) = response.extensions().get() {
        watch.context.failed(code);
    }
    let headers = response.headers_mut();
    if let Some(route) = watch.context.routed() {
        response_headers::add_route(headers, route);
    }
    if let Some(header) = header {
        headers.insert(REQUEST_ID, header);
    }
    if lifecycle.state() != lifecycle::State::Serving {
        headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    response.map(|body| Body::new(Watched { body, watch }))
}

/// A request in flight. It has ended when this is dropped, for whatever reason.
struct Watch {
    log: AccessLogger,
    client: Option<Client>,
    method: Method,
    path: String,
    at: SystemTime,
    context: RequestContext,
    span: Span,
    status: u16,
    complete: bool,
    /// Metrics of the request.
    metrics: HttpRequestMetrics,
    /// Those of the server.
    all: Arc<Metrics>,
    _in_flight: Counted,
}

impl Drop for Watch {
    fn drop(&mut self) {
        let (figures, route) = (self.context.figures(), self.context.routed());
        let took = self.context.arrived().elapsed();
        let _entered = self.span.enter();
        tracing::debug!(status = self.status, complete = self.complete, ms = ms(took), "over");
        // In an ensemble there is a reason for each route.
        if let Some(RouteEntry { model, why: Some(why) }) = route {
            self.all.recent().add(RecentRequest {
                time: rfc3339(self.at),
                request_id: self.context.id().0.to_string(),
                specialist: model.clone(),
                why: why.clone(),
                status: self.status,
                ms: ms(took),
                ttft_ms: figures.ttft.map(ms),
                completion_tokens: figures.completion_tokens,
            });
        }
        if !self.log.is_on() {
            return;
        }
        self.log.write(&Line {
            time: rfc3339(self.at),
            request_id: &self.context.id().0,
            client: self.client.map(|client| client.0.ip()),
            method: self.method.as_str(),
            path: &self.path,
            status: self.status,
            complete: self.complete,
            code: self.context.failure(),
            ms: ms(took),
            model: route.map(|route| route.model.as_str()),
            route: route.and_then(|route| route.why.as_deref()),
            shadow: self.context.shadow(),
            replica: figures.replica,
            queue_ms: figures.queue.map(ms),
            ttft_ms: figures.ttft.map(ms),
            prompt_tokens: figures.prompt_tokens,
            completion_tokens: figures.completion_tokens,
            cached_tokens: figures.cached_tokens,
            loaded_tokens: figures.loaded_tokens,
        });
    }
}

/// Body of a response, which marks the request complete at its end.
struct Watched {
    body: Body,
    watch: Watch,
}

impl HttpBody for Watched {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let Self { body, watch } = self.get_mut();
        let _entered = watch.span.enter();
        let frame = Pin::new(&mut *body).poll_frame(cx);
        if matches!(frame, Poll::Ready(None)) || body.is_end_stream() {
            watch.complete = true;
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        // A body of nothing is never asked for more.
        self.watch.complete |= self.body.is_end_stream();
    }
}
