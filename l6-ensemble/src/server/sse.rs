//! Server-sent events: a response that is a list of small JSON values, each written when it is there.
//!
//! `data: {...}` and an empty line, for each; `data: [DONE]` at the end. (WHATWG's HTML standard, section 9.2)

use std::convert::Infallible;

use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, header};
use axum::response::Response;
use futures_util::Stream;
use serde::Serialize;

/// What OpenAI's streams end with.
pub const DONE: Bytes = Bytes::from_static(b"data: [DONE]\n\n");

/// One event. JSON has no line ends of its own, so one line is enough.
pub fn event(value: &impl Serialize) -> Bytes {
    let mut text = b"data: ".to_vec();
    // Our own types have string keys and finite numbers: they can be written.
    if serde_json::to_writer(&mut text, value).is_err() {
        text.extend_from_slice(b"{}");
    }
    text.extend_from_slice(b"\n\n");
    text.into()
}

/// A response of events.
pub fn response(events: impl Stream<Item = Bytes> + Send + 'static) -> Response {
    use futures_util::StreamExt;
    let body = Body::from_stream(events.map(Ok::<_, Infallible>));
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    // Proxies that collect a response before they pass it on are asked not to.
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}
