//! Server-sent events: a response of JSON values, each sent when it is ready.
//!
//! `data: {...}` and an empty line, for each; `data: [DONE]` at the end. (WHATWG's HTML standard, section 9.2)

use std::convert::Infallible;

use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, header};
use axum::response::Response;
use futures_util::Stream;
use serde::Serialize;

/// Last event of OpenAI's streams.
pub const DONE: Bytes = Bytes::from_static(b"data: [DONE]\n\n");

/// Formats one event. JSON is written on one line.
pub fn event(value: &impl Serialize) -> Bytes {
    let mut text = b"data: ".to_vec();
    // Our own types have string keys and finite numbers: they can be written.
    if serde_json::to_writer(&mut text, value).is_err() {
        text.extend_from_slice(b"{}");
    }
    text.extend_from_slice(b"\n\n");
    text.into()
}

/// Makes a response of events.
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
