//! Metrics of HTTP: names and labels are those of the usual instrumentation for FastAPI, which vLLM has.

use std::sync::Arc;
use std::time::Instant;

use axum::extract::{MatchedPath, Request};
use axum::http::{Method, Response, header};

use super::buckets;
use super::registry::{Gauge, Registry};

/// Metrics that the middleware counts.
#[derive(Clone, Debug)]
pub struct HttpFamilies {
    registry: Arc<Registry>,
    /// Number of responses that are being streamed.
    pub streams: Gauge,
}

/// An HTTP request in flight. It is counted when this is dropped.
#[derive(Debug)]
pub struct HttpRequestMetrics {
    families: HttpFamilies,
    began: Instant,
    /// Route, not path: otherwise clients could create any number of series.
    handler: String,
    method: &'static str,
    status: u16,
    streams: bool,
}

impl HttpFamilies {
    /// Registers all of them, at 0.
    pub fn new(registry: &Arc<Registry>) -> Self {
        let help = "Number of responses that are being streamed.";
        let streams = registry.gauge("strata:sse_streams", help, &[]);
        Self { registry: registry.clone(), streams }
    }

    /// Begins to count a request. Until it has a response, its status is `gone`.
    pub fn begin_request(&self, request: &Request, gone: u16) -> HttpRequestMetrics {
        let route = request.extensions().get::<MatchedPath>();
        HttpRequestMetrics {
            families: self.clone(),
            began: Instant::now(),
            handler: route.map_or("none", MatchedPath::as_str).to_owned(),
            method: method(request.method()),
            status: gone,
            streams: false,
        }
    }
}

impl HttpRequestMetrics {
    /// Sets status and kind of the response.
    pub fn record_response<B>(&mut self, response: &Response<B>) {
        self.status = response.status().as_u16();
        let kind = response.headers().get(header::CONTENT_TYPE);
        let streams = kind.is_some_and(|kind| kind.as_bytes().starts_with(b"text/event-stream"));
        if streams && !std::mem::replace(&mut self.streams, true) {
            self.families.streams.add(1.0);
        }
    }
}

impl Drop for HttpRequestMetrics {
    fn drop(&mut self) {
        let Self { families: HttpFamilies { registry, streams }, handler, method, .. } = self;
        if self.streams {
            streams.add(-1.0);
        }
        let class = format!("{}xx", self.status / 100);
        let labels = [("handler", handler.as_str()), ("method", method), ("status", &class)];
        let help = "Total number of HTTP requests, by route, method and class of status.";
        registry.counter("http_requests_total", help, &labels).inc();
        let code = self.status.to_string();
        let help = "Number of HTTP responses, by status; 499 if the client disconnected before the response.";
        registry.counter("strata:http_responses_total", help, &[("code", &code)]).inc();
        let help = "Time from an HTTP request's head to the end of its response, in seconds.";
        let name = "http_request_duration_seconds";
        let labels = [("handler", handler.as_str()), ("method", method)];
        let histogram = registry.histogram(name, help, buckets::HTTP, &labels);
        histogram.observe(self.began.elapsed().as_secs_f64());
    }
}

/// Label of a method, from a fixed set.
fn method(method: &Method) -> &'static str {
    match *method {
        Method::GET => "GET",
        Method::HEAD => "HEAD",
        Method::POST => "POST",
        Method::OPTIONS => "OPTIONS",
        Method::PUT => "PUT",
        Method::PATCH => "PATCH",
        Method::DELETE => "DELETE",
        _ => "OTHER",
    }
}
