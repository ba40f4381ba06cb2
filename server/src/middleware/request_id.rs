//! An id for every HTTP request, by which a line of a client's log is found in the server's.

use axum::http::{HeaderMap, HeaderName, HeaderValue};
use l4_sampler::philox::fresh_seed;

/// Header of requests and of responses.
pub const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Maximum number of bytes of an id that a client chooses.
const MAX_ID_BYTES: usize = 128;

/// Id of an HTTP request: the client's own if it is usable, else a fresh one. It is part of the ids in responses, and
/// the response's `x-request-id`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpRequestId(pub String);

impl HttpRequestId {
    /// A random id.
    pub fn fresh() -> Self {
        Self(format!("{:016x}{:016x}", fresh_seed(), fresh_seed()))
    }

    /// Id that the client sent, or a fresh one. An id goes into logs, other ids and headers: letters, digits and
    /// `-_.:` are harmless in all of them.
    pub fn of(headers: &HeaderMap) -> Self {
        let usable = |id: &&str| {
            (1..=MAX_ID_BYTES).contains(&id.len())
                && id.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.:".contains(&b))
        };
        let own = headers.get(REQUEST_ID).and_then(|value| value.to_str().ok()).filter(usable);
        own.map_or_else(Self::fresh, |id| Self(id.to_owned()))
    }

    /// The id as the value of a header.
    pub fn header(&self) -> Option<HeaderValue> {
        HeaderValue::from_str(&self.0).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id_of(value: &'static str) -> HttpRequestId {
        let mut headers = HeaderMap::new();
        headers.insert(REQUEST_ID, HeaderValue::from_static(value));
        HttpRequestId::of(&headers)
    }

    #[test]
    fn a_usable_id_is_kept_and_any_other_replaced() {
        assert_eq!(id_of("job-7:step.2").0, "job-7:step.2");
        for odd in ["", "a b", "\"quoted\"", "a/b"] {
            let id = id_of(odd).0;
            assert!(id != odd && id.len() == 32, "{odd:?}: {id:?}");
        }
        assert_ne!(HttpRequestId::fresh(), HttpRequestId::fresh());
    }
}
