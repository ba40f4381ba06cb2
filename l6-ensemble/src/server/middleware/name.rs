//! A name for every request, so that a client's log and the server's can be laid side by side.

use std::convert::Infallible;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue};
use l4_sampler::philox::fresh_seed;

/// The header that carries it, both ways.
pub const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// The longest name that is taken from a client.
const LONGEST: usize = 128;

/// The name of a request: the client's own if it sent a sane one, else a fresh one. It is an extension of every request,
/// part of the ids in responses, and in the response's `x-request-id`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestName(pub String);

impl RequestName {
    /// A name that nobody else has.
    pub fn fresh() -> Self {
        Self(format!("{:016x}{:016x}", fresh_seed(), fresh_seed()))
    }

    /// What the client calls it, or a fresh name. A name goes into logs, ids and headers: letters, digits and `-_.:` are
    /// harmless in all of them.
    pub fn of(headers: &HeaderMap) -> Self {
        let sane = |name: &&str| {
            (1..=LONGEST).contains(&name.len())
                && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.:".contains(&b))
        };
        let own = headers.get(REQUEST_ID).and_then(|value| value.to_str().ok()).filter(sane);
        own.map_or_else(Self::fresh, |name| Self(name.to_owned()))
    }

    /// The name as a header's value.
    pub fn header(&self) -> Option<HeaderValue> {
        HeaderValue::from_str(&self.0).ok()
    }
}

impl<S: Sync> FromRequestParts<S> for RequestName {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        Ok(parts.extensions.get::<Self>().cloned().unwrap_or_else(|| Self::of(&parts.headers)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(value: &'static str) -> RequestName {
        let mut headers = HeaderMap::new();
        headers.insert(REQUEST_ID, HeaderValue::from_static(value));
        RequestName::of(&headers)
    }

    #[test]
    fn a_sane_name_is_kept_and_any_other_replaced() {
        assert_eq!(named("job-7:step.2").0, "job-7:step.2");
        for odd in ["", "a b", "\"quoted\"", "a/b"] {
            let name = named(odd).0;
            assert!(name != odd && name.len() == 32, "{odd:?}: {name:?}");
        }
        assert_ne!(RequestName::fresh(), RequestName::fresh());
    }
}
