//! What is counted of HTTP: names and labels are those of the usual instrumentation for FastAPI, which vLLM has.

use std::sync::Arc;
use std::time::Instant;

use axum::extract::{MatchedPath, Request};
use axum::http::{Method, Response, header};

use super::buckets;
use super::registry::{Gauge, Registry};

/// What the middleware counts in.
#[derive(Clone, Debug)]
pub struct HttpFamilies {
    registry: Arc<Registry>,
    /// Answers that are being streamed.
    pub streams: Gauge,
}

/// A request that is under way. Dropped, it is over, and counted.
#[derive(Debug)]
pub struct Asked {
    families: HttpFamilies,
    began: Instant,
    /// The route, and not the path: a client that makes paths up must not make series up.
    handler: String,
    method: &'static str,
    status: u16,
    streams: bool,
}

impl HttpFamilies {
    /// Nothing was asked yet.
    pub fn new(registry: &Arc<Registry>) -> Self {
        let help = "Answers that are being streamed.";
        let streams = registry.gauge("strata:sse_streams", help, &[]);
        Self { registry: registry.clone(), streams }
    }

    /// A request's head is there. Until it has a response, it is one whose client has gone.
    pub fn asked(&self, request: &Request, gone: u16) -> Asked {
        let route = request.extensions().get::<MatchedPath>();
        Asked {
            families: self.clone(),
            began: Instant::now(),
            handler: route.map_or("none", MatchedPath::as_str).to_owned(),
            method: method(request.method()),
            status: gone,
            streams: false,
        }
    }
}

impl Asked {
    /// Its response begins.
    pub fn answered<B>(&mut self, response: &Response<B>) {
        self.status = response.status().as_u16();
        let kind = response.headers().get(header::CONTENT_TYPE);
        let streams = kind.is_some_and(|kind| kind.as_bytes().starts_with(b"text/event-stream"));
        if streams && !std::mem::replace(&mut self.streams, true) {
            self.families.streams.add(1.0);
        }
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        let Self { families: HttpFamilies { registry, streams }, handler, method, .. } = self;
        if self.streams {
            streams.add(-1.0);
        }
        let class = format!("{}xx", self.status / 100);
        let labels = [("handler", handler.as_str()), ("method", method), ("status", &class)];
        let help = "HTTP requests that are over, by route, method and class of status.";
        registry.counter("http_requests_total", help, &labels).inc();
        let code = self.status.to_string();
        let help = "HTTP responses, by status; 499 is a client that went before it had one.";
        registry.counter("strata:http_responses_total", help, &[("code", &code)]).inc();
        let help = "From an HTTP request's head to the end of its response.";
        let name = "http_request_duration_seconds";
        let labels = [("handler", handler.as_str()), ("method", method)];
        let histogram = registry.histogram(name, help, buckets::HTTP, &labels);
        histogram.observe(self.began.elapsed().as_secs_f64());
    }
}

/// A method's name, of those that a label may have.
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
