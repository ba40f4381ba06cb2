//! A request's body as a value, with the path of whatever is wrong in it.

use axum::body::Bytes;
use axum::extract::{FromRequest, Request};
use axum::http::StatusCode;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::app::Shared;
use super::error::ApiError;

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

impl<T: FromBody> FromRequest<Shared> for Body<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, app: &Shared) -> Result<Self, ApiError> {
        let bytes = bytes(request, app).await?;
        let value = parse(&bytes)?;
        T::from_body(&value).map(Self)
    }
}

/// The bytes of a body, up to the limit.
async fn bytes(request: Request, app: &Shared) -> Result<Bytes, ApiError> {
    let limits = app.options.limits;
    let most = limits.body_bytes;
    let too_large = || {
        let message = format!("the body is larger than {most} bytes: send less");
        ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "invalid_request_error", message)
    };
    let read = axum::body::to_bytes(request.into_body(), most);
    match tokio::time::timeout(limits.body_timeout, read).await {
        Ok(Ok(bytes)) => Ok(bytes),
        Ok(Err(why)) if is_length_limit(&why) => Err(too_large()),
        Ok(Err(why)) => Err(ApiError::invalid(format!("the body could not be read: {why}"))),
        Err(_) => {
            let message = "the body did not come in time: send it in one go";
            Err(ApiError::new(StatusCode::REQUEST_TIMEOUT, "invalid_request_error", message))
        }
    }
}

fn is_length_limit(error: &axum::Error) -> bool {
    let mut source = std::error::Error::source(error);
    while let Some(error) = source {
        if error.is::<http_body_util::LengthLimitError>() {
            return true;
        }
        source = error.source();
    }
    false
}

fn parse(bytes: &[u8]) -> Result<Value, ApiError> {
    let value: Value = serde_json::from_slice(bytes)
        .map_err(|why| ApiError::invalid(format!("the body is not JSON: {why}")))?;
    if value.is_object() {
        return Ok(value);
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
        let problem = why.into_inner();
        if path == "." {
            return ApiError::invalid(problem.to_string());
        }
        ApiError::param(path.clone(), format!("{path}: {problem}"))
    })
}
