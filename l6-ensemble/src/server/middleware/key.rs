//! Who may ask: whoever shows one of the keys, where there are any.

use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use sha2::{Digest, Sha256};

use crate::server::app::Shared;
use crate::server::error::ApiError;

/// Let through who shows a key.
pub async fn check(State(app): State<Shared>, request: Request, next: Next) -> Response {
    let keys = &app.options.api_keys;
    if keys.is_empty() || shown(request.headers()).is_some_and(|key| is_one_of(key, keys)) {
        return next.run(request).await;
    }
    let message =
        "a key is needed, and none of this server's was shown: send `Authorization: Bearer KEY`";
    let error = ApiError::new(StatusCode::UNAUTHORIZED, "invalid_request_error", message);
    let mut response = error.with_code("invalid_api_key").into_response();
    response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    response
}

/// The key that a request shows.
fn shown(headers: &HeaderMap) -> Option<&[u8]> {
    let value = headers.get(header::AUTHORIZATION)?.as_bytes();
    let (scheme, key) = value.split_at_checked("Bearer ".len())?;
    scheme.eq_ignore_ascii_case(b"Bearer ").then(|| key.trim_ascii())
}

/// Whether a key is one of them, in a time that does not tell how much of it is right.
fn is_one_of(key: &[u8], keys: &[String]) -> bool {
    let shown = Sha256::digest(key);
    let same = |own: &String| {
        let own = Sha256::digest(own.as_bytes());
        shown.iter().zip(own.iter()).fold(0, |differing, (a, b)| differing | (a ^ b)) == 0
    };
    // All of them are looked at, whichever it is.
    keys.iter().fold(false, |found, own| found | same(own))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_of_the_keys_will_do_and_nothing_else() {
        let keys = ["one".to_owned(), "two".to_owned()];
        for (key, known) in
            [("one", true), ("two", true), ("", false), ("on", false), ("onee", false)]
        {
            assert_eq!(is_one_of(key.as_bytes(), &keys), known, "{key}");
        }
    }

    #[test]
    fn a_key_is_what_follows_bearer() {
        let key = |value| {
            let mut headers = HeaderMap::new();
            headers.insert(header::AUTHORIZATION, HeaderValue::from_static(value));
            shown(&headers).map(<[u8]>::to_vec)
        };
        assert_eq!(key("Bearer abc"), Some(b"abc".to_vec()));
        assert_eq!(key("bearer  abc "), Some(b"abc".to_vec()));
        assert_eq!(key("Basic abc"), None);
        assert_eq!(key("abc"), None);
    }
}
