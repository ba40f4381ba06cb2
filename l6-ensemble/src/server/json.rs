//! A request's body as a value, with the path of whatever is wrong in it.

use axum::body::{Bytes, HttpBody};
use axum::extract::{FromRequest, Request};
use axum::http::{HeaderMap, StatusCode, header};
use bytes::BytesMut;
use http_body_util::BodyExt;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::app::Shared;
use super::error::ApiError;
use super::options::Limits;

/// Bodies from this many bytes on are read on a thread that may take its time.
const LONG: usize = 64 << 10;

/// So many times the limit of a body is read before its client is cut off.
const THROWN_AWAY: usize = 8;

/// A type that a JSON body can be read as. A body of several parts reads each of them from the same object: serde's own
/// `flatten` forgets the path of an error.
pub trait FromBody: Sized {
    /// Read it.
    ///
    /// # Errors
    /// [`ApiError`] with the path of the field that is to blame.
    fn from_body(body: &Value) -> Result<Self, ApiError>;
}

/// A JSON body as an extractor.
pub struct Body<T>(pub T);

impl<T: FromBody + Send + 'static> FromRequest<Shared> for Body<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, app: &Shared) -> Result<Self, ApiError> {
        is_json(request.headers())?;
        let bytes = bytes(request, app).await?;
        if bytes.len() < LONG {
            return read(&bytes).map(Self);
        }
        // Megabytes of JSON take their time, which is not that of the tasks beside this one.
        let read = tokio::task::spawn_blocking(move || read(&bytes)).await;
        read.map_err(|why| ApiError::internal(why.to_string()))?.map(Self)
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
async fn bytes(request: Request, app: &Shared) -> Result<Bytes, ApiError> {
    let Limits { body_bytes: most, body_timeout, .. } = app.options.limits;
    // Whoever waits for a word before he sends need not send.
    let asks_first = request.headers().contains_key(header::EXPECT);
    let mut body = request.into_body();
    if asks_first && body.size_hint().lower() > most as u64 {
        return Err(too_large(most));
    }
    match tokio::time::timeout(body_timeout, gather(&mut body, most)).await {
        Ok(bytes) => bytes,
        Err(_) => {
            let message = "the body did not come in time: send it in one go";
            let error = ApiError::new(StatusCode::REQUEST_TIMEOUT, "timeout_error", message);
            Err(error.with_code("body_timeout"))
        }
    }
}

/// All of a body that is not too large. Of one that is, a good part is read and thrown away: a client that is cut off
/// while it writes often does not see what it was told.
async fn gather(body: &mut axum::body::Body, most: usize) -> Result<Bytes, ApiError> {
    let too_much = most.saturating_mul(THROWN_AWAY);
    let (mut bytes, mut came) = (BytesMut::new(), 0_usize);
    while let Some(frame) = body.frame().await {
        let frame =
            frame.map_err(|why| ApiError::invalid(format!("the body could not be read: {why}")))?;
        let Ok(data) = frame.into_data() else { continue };
        came = came.saturating_add(data.len());
        if came <= most {
            bytes.extend_from_slice(&data);
        } else {
            bytes = BytesMut::new();
            if came > too_much {
                break;
            }
        }
    }
    if came > most { Err(too_large(most)) } else { Ok(bytes.freeze()) }
}

fn too_large(most: usize) -> ApiError {
    let message = format!("the body is larger than {most} bytes: send less");
    let error = ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "invalid_request_error", message);
    error.with_code("body_too_large")
}

fn read<T: FromBody>(bytes: &[u8]) -> Result<T, ApiError> {
    let value: Value = serde_json::from_slice(bytes)
        .map_err(|why| ApiError::invalid(format!("the body is not JSON: {why}")))?;
    if value.is_object() {
        return T::from_body(&value);
    }
    Err(ApiError::invalid("the body should be a JSON object"))
}

/// One part of a body, with the path of what is wrong in it.
///
/// # Errors
/// [`ApiError`] with that path as `param`.
pub fn part<T: DeserializeOwned>(body: &Value) -> Result<T, ApiError> {
    serde_path_to_error::deserialize(body).map_err(|why| {
        let path = why.path().to_string();
        let path = if path == "." { String::new() } else { path };
        let problem = why.into_inner().to_string();
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
    })
}
