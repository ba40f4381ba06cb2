//! Reads and parses request bodies. An error has the path of the invalid field.

use std::time::Duration;

use axum::body::{Bytes, HttpBody};
use axum::extract::{FromRef, FromRequest, Request};
use axum::http::{HeaderMap, StatusCode, header};
use bytes::BytesMut;
use http_body_util::BodyExt;
use serde::de::{DeserializeOwned, IgnoredAny};

use super::background::Background;
use super::error::{ApiError, quoted};
use super::listen::Upload;
use super::options::Limits;

pub mod parsed_size;
pub mod tree;

use parsed_size::{MemoryPermit, ParsedMemory, ValueCounts};

/// Minimum size of a body that is parsed in the background, in bytes.
const MIN_BACKGROUND_BYTES: usize = 64 << 10;

/// A body that is too large is read and discarded up to this multiple of the limit, before its connection is closed.
const MAX_DISCARD_FACTOR: usize = 8;

/// Memory is reserved for at most this multiple of the bytes that were received, whatever `Content-Length` says.
const MAX_RESERVE_FACTOR: usize = 8;

/// A type that a JSON body can be parsed as. A type of several parts parses each of them from the same bytes: serde's
/// own `flatten` forgets the path of an error, and a tree of all values takes 36 times the bytes of a body.
pub trait FromBody: Sized {
    /// Parses a body.
    ///
    /// # Errors
    /// [`ApiError`] with the path of the invalid field.
    fn from_body(body: &[u8]) -> Result<Self, ApiError>;
}

/// Extractor of a JSON body, with its share of the memory for parsed bodies: to be dropped with the value.
pub struct Body<T>(pub T, pub MemoryPermit);

/// Reads request bodies, within their limits. Clones share everything.
#[derive(Clone, Debug)]
pub struct BodyReader {
    background: Background,
    parsed: ParsedMemory,
    max_bytes: usize,
    timeout: Duration,
}

impl BodyReader {
    /// A reader with these limits.
    pub fn new(background: Background, limits: &Limits) -> Self {
        let &Limits { body_bytes: max_bytes, body_timeout: timeout, .. } = limits;
        Self { background, parsed: ParsedMemory::default(), max_bytes, timeout }
    }
}

impl<T, S> FromRequest<S> for Body<T>
where
    T: FromBody + Send + 'static,
    S: Sync,
    BodyReader: FromRef<S>,
{
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &S) -> Result<Self, ApiError> {
        let reader = BodyReader::from_ref(state);
        check_content_type(request.headers())?;
        let ReceivedBody { bytes, counts } = receive(request, &reader).await?;
        let memory = reader.parsed.acquire(counts.parsed_bytes(bytes.len())).await;
        if bytes.len() < MIN_BACKGROUND_BYTES {
            return Ok(Self(parse(&bytes)?, memory));
        }
        // Parsing megabytes of JSON would delay the other tasks of this thread.
        let value = reader.background.run(bytes.len(), move || parse(&bytes)).await??;
        Ok(Self(value, memory))
    }
}

/// Checks that the content type of a body is JSON.
///
/// A page in a browser can send a form or plain text to any server, one on this machine included, without a CORS
/// preflight, but not JSON. So a form is not parsed as JSON, although `curl -d` sends JSON as a form by default;
/// nor is a page's body without a content type.
fn check_content_type(headers: &HeaderMap) -> Result<(), ApiError> {
    let content_type = match headers.get(header::CONTENT_TYPE) {
        None if headers.contains_key(header::ORIGIN) => "(none)",
        None => return Ok(()),
        Some(value) => value.to_str().unwrap_or("(not text)"),
    };
    let kind = content_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    if kind == "application/json" || (kind.starts_with("application/") && kind.ends_with("+json")) {
        return Ok(());
    }
    let message =
        format!("Unsupported content type {content_type}: send `Content-Type: application/json`.");
    let error = ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "invalid_request_error", message);
    Err(error.with_code("unsupported_media_type"))
}

/// Receives a body, up to the limit.
async fn receive(request: Request, reader: &BodyReader) -> Result<ReceivedBody, ApiError> {
    let most = reader.max_bytes;
    // With `Expect: 100-continue`, a request is rejected before its body is uploaded.
    let expects_continue = request.headers().contains_key(header::EXPECT);
    let upload = request.extensions().get::<Upload>().cloned();
    let mut body = request.into_body();
    if expects_continue && body.size_hint().lower() > most as u64 {
        return Err(too_large(most));
    }
    let read = tokio::time::timeout(reader.timeout, gather(&mut body, most, upload.as_ref())).await;
    if let Some(upload) = &upload {
        upload.done();
    }
    match read {
        Ok(read) => read,
        Err(_) => {
            let message = "The request body was not received within the time limit.";
            let error = ApiError::new(StatusCode::REQUEST_TIMEOUT, "timeout_error", message);
            Err(error.with_code("body_timeout"))
        }
    }
}

/// A body that was received.
struct ReceivedBody {
    bytes: Bytes,
    counts: ValueCounts,
}

/// Collects a body. One that is too large is read and discarded up to a limit: a client whose connection is closed
/// while it writes often does not see the response.
async fn gather(
    body: &mut axum::body::Body,
    most: usize,
    upload: Option<&Upload>,
) -> Result<ReceivedBody, ApiError> {
    let too_much = most.saturating_mul(MAX_DISCARD_FACTOR);
    let announced = usize::try_from(body.size_hint().lower()).unwrap_or(usize::MAX);
    let (mut bytes, mut received) = (BytesMut::new(), 0_usize);
    let mut counts = ValueCounts::default();
    loop {
        if let Some(upload) = upload {
            upload.wait();
        }
        let Some(frame) = body.frame().await else { break };
        let frame = frame.map_err(|why| {
            ApiError::invalid(format!("The request body could not be read: {why}"))
        })?;
        let Ok(data) = frame.into_data() else { continue };
        received = received.saturating_add(data.len());
        counts.read(&data);
        if received <= most && counts.is_bounded() {
            if bytes.is_empty() {
                // By `Content-Length`: a vector that doubles would take up to three times as much.
                bytes.reserve(
                    announced.min(most).min(data.len().saturating_mul(MAX_RESERVE_FACTOR)),
                );
            }
            bytes.extend_from_slice(&data);
        } else {
            bytes = BytesMut::new();
            if received > too_much {
                break;
            }
        }
    }
    if received > most {
        return Err(too_large(most));
    }
    counts.check()?;
    Ok(ReceivedBody { bytes: bytes.freeze(), counts })
}

fn too_large(most: usize) -> ApiError {
    let message = format!("The request body is larger than the maximum of {most} bytes.");
    let error = ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "invalid_request_error", message);
    error.with_code("body_too_large")
}

fn parse<T: FromBody>(bytes: &[u8]) -> Result<T, ApiError> {
    if bytes.iter().find(|byte| !byte.is_ascii_whitespace()).is_some_and(|byte| *byte != b'{') {
        // Invalid JSON has an error of its own.
        part::<IgnoredAny>(bytes)?;
        return Err(ApiError::invalid("The request body must be a JSON object."));
    }
    T::from_body(bytes)
}

/// Parses one part of a body.
///
/// # Errors
/// [`ApiError`] with the path of the invalid field as `param`.
pub fn part<T: DeserializeOwned>(body: &[u8]) -> Result<T, ApiError> {
    tree::reset_limit();
    let mut json = serde_json::Deserializer::from_slice(body);
    let value = serde_path_to_error::deserialize(&mut json).map_err(|why| {
        let path = why.path().to_string();
        let inner = why.into_inner();
        if inner.is_syntax() || inner.is_eof() {
            return ApiError::invalid(format!("The request body is not valid JSON: {inner}"));
        }
        let path = if path == "." { String::new() } else { path };
        // The error may quote the value, which may be a megabyte.
        let problem = quoted(&without_position(&inner));
        // Where a field is missing, the path ends at the object that should have it.
        let missing = problem.strip_prefix("missing field `").and_then(|rest| rest.split_once('`'));
        let path = match missing {
            Some((field, _)) if path.is_empty() => field.to_owned(),
            Some((field, _)) => format!("{path}.{field}"),
            None => path,
        };
        if path.is_empty() {
            return ApiError::invalid(format!("The request body is invalid: {problem}"));
        }
        let message = match missing {
            Some(_) => format!("The request body is invalid: `{path}` is missing"),
            None => format!("The request body is invalid: `{path}`: {problem}"),
        };
        ApiError::param(path, message)
    })?;
    match json.end() {
        Ok(()) => Ok(value),
        Err(why) => Err(ApiError::invalid(format!("The request body is not valid JSON: {why}"))),
    }
}

/// Message of an error about a value, without line and column: bodies are rarely written in lines.
fn without_position(why: &serde_json::Error) -> String {
    let text = why.to_string();
    let position = format!(" at line {} column {}", why.line(), why.column());
    text.strip_suffix(&position).unwrap_or(&text).to_owned()
}
