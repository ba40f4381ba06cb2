//! What surrounds every request: its name, its span, its place among those that are under way, and a line when it is over.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::SystemTime;

use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderValue, Method, header};
use axum::middleware::Next;
use axum::response::Response;
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use tracing::{Instrument, Span};

use super::access::{AccessLogger, Line, ms, rfc3339};
use super::name::{REQUEST_ID, RequestName};
use super::record::{RECORD, Record};
use crate::server::app::Shared;
use crate::server::life::{self, Counted};
use crate::server::listen::Client;
use crate::server::metrics::Asked;

/// The status of a request whose client did not wait for one, as nginx has it.
const CLIENT_GONE: u16 = 499;

/// Watch over a request from its head to the end of its response.
pub async fn request(State(app): State<Shared>, mut request: Request, next: Next) -> Response {
    // Before anybody looks whether requests are taken: so a drain waits for whoever was let in.
    let under_way = app.life.requests().enter();
    let name = RequestName::of(request.headers());
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let span = tracing::info_span!("request", id = %name.0, %method, %path);
    let record = Record::begin();
    let mut watch = Watch {
        log: request.extensions().get::<AccessLogger>().cloned().unwrap_or_default(),
        client: request.extensions().get::<Client>().copied(),
        name: name.clone(),
        method,
        path,
        at: SystemTime::now(),
        record: record.clone(),
        span: span.clone(),
        status: CLIENT_GONE,
        complete: false,
        asked: app.metrics.asked(&request, CLIENT_GONE),
        _under_way: under_way,
    };
    let header = name.header();
    request.extensions_mut().insert(name);
    let mut response = RECORD.scope(record, next.run(request)).instrument(span).await;
    watch.status = response.status().as_u16();
    watch.asked.answered(&response);
    let headers = response.headers_mut();
    if let Some(header) = header {
        headers.insert(REQUEST_ID, header);
    }
    if app.life.state() != life::State::Serving {
        headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    response.map(|body| Body::new(Watched { body, watch }))
}

/// A request that is under way. Dropped, it is over, however that came.
struct Watch {
    log: AccessLogger,
    client: Option<Client>,
    name: RequestName,
    method: Method,
    path: String,
    at: SystemTime,
    record: Record,
    span: Span,
    status: u16,
    complete: bool,
    /// What is counted of it.
    asked: Asked,
    _under_way: Counted,
}

impl Drop for Watch {
    fn drop(&mut self) {
        let figures = self.record.figures();
        let took = figures.began.elapsed();
        let _entered = self.span.enter();
        tracing::debug!(status = self.status, complete = self.complete, ms = ms(took), "over");
        if !self.log.is_on() {
            return;
        }
        self.log.write(&Line {
            time: rfc3339(self.at),
            request_id: &self.name.0,
            client: self.client.map(|client| client.0.ip()),
            method: self.method.as_str(),
            path: &self.path,
            status: self.status,
            complete: self.complete,
            ms: ms(took),
            queue_ms: figures.queue.map(ms),
            ttft_ms: figures.ttft.map(ms),
            prompt_tokens: figures.prompt_tokens,
            completion_tokens: figures.completion_tokens,
            cached_tokens: figures.cached_tokens,
        });
    }
}

/// A response's body, which knows when it is over.
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
