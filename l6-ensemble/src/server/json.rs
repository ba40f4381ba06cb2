//! A request's body as a value, with the path of whatever is wrong in it.

use axum::body::{Bytes, HttpBody};
use axum::extract::{FromRequest, Request};
use axum::http::{HeaderMap, StatusCode, header};
use bytes::BytesMut;
use http_body_util::BodyExt;
use serde::de::{DeserializeOwned, IgnoredAny};

use super::app::Shared;
use super::background;
use super::error::{ApiError, quoted};
use super::listen::Upload;
use super::options::Limits;

pub mod shape;
pub mod tree;

use shape::{Held, Shape};

/// Bodies from this many bytes on are parsed in the background.
const LONG: usize = 64 << 10;

/// So many times the limit of a body is read before its client is cut off.
const THROWN_AWAY: usize = 8;

/// Memory is made for at most so many times the bytes that have come of a body, whatever its `Content-Length` says.
const RESERVED_AHEAD: usize = 8;

/// A type that a JSON body can be read as. A body of several parts reads each of them from the same bytes: serde's own
/// `flatten` forgets the path of an error, and a tree of all values takes 36 times the bytes of a body.
pub trait FromBody: Sized {
    /// Read it.
    ///
    /// # Errors
    /// [`ApiError`] with the path of the field that is to blame.
    fn from_body(body: &[u8]) -> Result<Self, ApiError>;
}

/// A JSON body as an extractor, and its share of the memory for parsed bodies: to be dropped when the value is.
pub struct Body<T>(pub T, pub Held);

impl<T: FromBody + Send + 'static> FromRequest<Shared> for Body<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, app: &Shared) -> Result<Self, ApiError> {
        is_json(request.headers())?;
        let Read { bytes, shape } = bytes(request, app).await?;
        let held = app.parsed.hold(shape.parsed_bytes(bytes.len())).await;
        if bytes.len() < LONG {
            return Ok(Self(read(&bytes)?, held));
        }
        // Megabytes of JSON take their time, which is not that of the tasks beside this one.
        let value = background::run(app, bytes.len(), move |_| read(&bytes)).await??;
        Ok(Self(value, held))
    }
}

/// Whether a body is said to be JSON.
///
/// A page in a browser can send what is said to be a form or plain text to any server, this machine's own included,
/// without anybody being asked. JSON it cannot. So a form is not read as JSON, although it might be (`curl -d` says so, if
/// it is not told better); nor is a body of no type that a page sends.
fn is_json(headers: &HeaderMap) -> Result<(), ApiError> {
    let told = match headers.get(header::CONTENT_TYPE) {
        None if headers.contains_key(header::ORIGIN) => "no type at all",
        None => return Ok(()),
        Some(told) => told.to_str().unwrap_or("what is no text"),
    };
    let kind = told.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    if kind == "application/json" || (kind.starts_with("application/") && kind.ends_with("+json")) {
        return Ok(());
    }
    let message = format!("the body is said to be {told}: send `Content-Type: application/json`");
    let error = ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "invalid_request_error", message);
    Err(error.with_code("unsupported_media_type"))
}

/// The bytes of a body, up to the limit.
async fn bytes(request: Request, app: &Shared) -> Result<Read, ApiError> {
    let Limits { body_bytes: most, body_timeout, .. } = app.options.limits;
    // With `Expect: 100-continue`, a request is rejected before its body is uploaded.
    let asks_first = request.headers().contains_key(header::EXPECT);
    let upload = request.extensions().get::<Upload>().cloned();
    let mut body = request.into_body();
    if asks_first && body.size_hint().lower() > most as u64 {
        return Err(too_large(most));
    }
    let read = tokio::time::timeout(body_timeout, gather(&mut body, most, upload.as_ref())).await;
    if let Some(upload) = &upload {
        upload.done();
    }
    match read {
        Ok(read) => read,
        Err(_) => {
            let message = "the body did not come in time: send it in one go";
            let error = ApiError::new(StatusCode::REQUEST_TIMEOUT, "timeout_error", message);
            Err(error.with_code("body_timeout"))
        }
    }
}

/// A body that was read.
struct Read {
    bytes: Bytes,
    shape: Shape,
}

/// All of a body that is not too large. Of one that is, a good part is read and thrown away: a client that is cut off
/// while it writes often does not see the response.
async fn gather(
    body: &mut axum::body::Body,
    most: usize,
    upload: Option<&Upload>,
) -> Result<Read, ApiError> {
    let too_much = most.saturating_mul(THROWN_AWAY);
    let told = usize::try_from(body.size_hint().lower()).unwrap_or(usize::MAX);
    let (mut bytes, mut came) = (BytesMut::new(), 0_usize);
    let mut shape = Shape::default();
    loop {
        if let Some(upload) = upload {
            upload.wait();
        }
        let Some(frame) = body.frame().await else { break };
        let frame =
            frame.map_err(|why| ApiError::invalid(format!("the body could not be read: {why}")))?;
        let Ok(data) = frame.into_data() else { continue };
        came = came.saturating_add(data.len());
        shape.read(&data);
        if came <= most && shape.is_bounded() {
            if bytes.is_empty() {
                // What was announced and has begun to come. A vector that doubles would take up to three times as much.
                bytes.reserve(told.min(most).min(data.len().saturating_mul(RESERVED_AHEAD)));
            }
            bytes.extend_from_slice(&data);
        } else {
            bytes = BytesMut::new();
            if came > too_much {
                break;
            }
        }
    }
    if came > most {
        return Err(too_large(most));
    }
    shape.check()?;
    Ok(Read { bytes: bytes.freeze(), shape })
}

fn too_large(most: usize) -> ApiError {
    let message = format!("the body is larger than {most} bytes: send less");
    let error = ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "invalid_request_error", message);
    error.with_code("body_too_large")
}

fn read<T: FromBody>(bytes: &[u8]) -> Result<T, ApiError> {
    if bytes.iter().find(|byte| !byte.is_ascii_whitespace()).is_some_and(|byte| *byte != b'{') {
        // Broken JSON is told as that.
        part::<IgnoredAny>(bytes)?;
        return Err(ApiError::invalid("The request body must be a JSON object."));
    }
    T::from_body(bytes)
}

/// One part of a body, with the path of what is wrong in it.
///
/// # Errors
/// [`ApiError`] with that path as `param`.
pub fn part<T: DeserializeOwned>(body: &[u8]) -> Result<T, ApiError> {
    tree::begin();
    let mut json = serde_json::Deserializer::from_slice(body);
    let value = serde_path_to_error::deserialize(&mut json).map_err(|why| {
        let path = why.path().to_string();
        let inner = why.into_inner();
        if inner.is_syntax() || inner.is_eof() {
            return ApiError::invalid(format!("The request body is not valid JSON: {inner}"));
        }
        let path = if path == "." { String::new() } else { path };
        // It may repeat the value, which may be a megabyte.
        let problem = quoted(&without_position(&inner));
        // Where a field is missing, the path ends at the object that should have it.
        let missing = problem.strip_prefix("missing field `").and_then(|rest| rest.split_once('`'));
        let path = match missing {
            Some((field, _)) if path.is_empty() => field.to_owned(),
            Some((field, _)) => format!("{path}.{field}"),
            None => path,
        };
        if path.is_empty() {
            return ApiError::invalid(problem);
        }
        ApiError::param(path.clone(), format!("{path}: {problem}"))
    })?;
    match json.end() {
        Ok(()) => Ok(value),
        Err(why) => Err(ApiError::invalid(format!("The request body is not valid JSON: {why}"))),
    }
}

/// The words of an error about a value, without the line and column of a body that nobody sees as lines.
fn without_position(why: &serde_json::Error) -> String {
    let text = why.to_string();
    let position = format!(" at line {} column {}", why.line(), why.column());
    text.strip_suffix(&position).unwrap_or(&text).to_owned()
}
