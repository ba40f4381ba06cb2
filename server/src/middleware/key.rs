//! API keys: where there are any, a request must present one of them.

use std::convert::Infallible;
use std::sync::Arc;

use axum::extract::{FromRequestParts, Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use sha2::{Digest, Sha256};

use crate::error::ApiError;
use crate::options::ServerOptions;

/// Whose request it is: an extension of every request that presented a key. By default it is anybody's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tenant {
    /// Digest of the key; none where no key is needed.
    digest: Option<u64>,
    /// Whether cached blocks are shared between keys.
    shares_prefix_cache: bool,
}

impl Tenant {
    /// Cache salt that keeps this tenant's blocks apart from those of others, and from those of its own requests with
    /// another salt.
    pub fn salt(self, salt: Option<String>) -> Option<String> {
        match self {
            Self { digest: Some(tenant), shares_prefix_cache: false } => {
                Some(format!("{tenant:016x}/{}", salt.unwrap_or_default()))
            }
            _ => salt,
        }
    }

    /// Id of a job of this tenant. The scheduler tells jobs of different salts apart; where tenants share the cache,
    /// and so have no salts of their own, the id does.
    pub fn job_id(self, id: &str) -> String {
        match self {
            Self { digest: Some(tenant), shares_prefix_cache: true } => {
                format!("{tenant:016x}/{id}")
            }
            _ => id.to_owned(),
        }
    }

    /// The tenant of a key with this digest.
    #[cfg(test)]
    pub(crate) fn of(digest: u64, shares_prefix_cache: bool) -> Self {
        Self { digest: Some(digest), shares_prefix_cache }
    }
}

impl<S: Sync> FromRequestParts<S> for Tenant {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        Ok(parts.extensions.get().copied().unwrap_or_default())
    }
}

/// Keys of which a client must present one. Clones share them.
#[derive(Clone)]
pub struct ApiKeys {
    /// None: no key is needed.
    keys: Arc<[String]>,
    /// Whether cached blocks are shared between keys.
    share_prefix_cache: bool,
}

impl ApiKeys {
    /// The keys that the operator names.
    pub fn new(options: &ServerOptions) -> Self {
        let keys = options.api_keys.as_slice().into();
        Self { keys, share_prefix_cache: options.share_prefix_cache }
    }
}

/// Passes requests on that present a key, and refuses others.
pub async fn check(State(own): State<ApiKeys>, mut request: Request, next: Next) -> Response {
    let keys = &own.keys;
    let key = presented(request.headers()).filter(|key| is_one_of(key, keys));
    if let Some(key) = key {
        let digest = Sha256::digest([b"strata tenant", key].concat());
        let digest = digest.iter().take(8).fold(0, |id, byte| id << 8 | u64::from(*byte));
        let shares_prefix_cache = own.share_prefix_cache;
        request.extensions_mut().insert(Tenant { digest: Some(digest), shares_prefix_cache });
    } else if !keys.is_empty() {
        return unauthorized();
    }
    next.run(request).await
}

fn unauthorized() -> Response {
    let message = "You must provide a valid API key in an Authorization header, as `Authorization: Bearer KEY`.";
    let error = ApiError::new(StatusCode::UNAUTHORIZED, "invalid_request_error", message);
    let mut response = error.with_code("invalid_api_key").into_response();
    response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    response
}

/// Key that a request presents.
fn presented(headers: &HeaderMap) -> Option<&[u8]> {
    let value = headers.get(header::AUTHORIZATION)?.as_bytes();
    let (scheme, key) = value.split_at_checked("Bearer ".len())?;
    scheme.eq_ignore_ascii_case(b"Bearer ").then(|| key.trim_ascii())
}

/// Returns whether a key is one of `keys`, in a time that does not depend on how much of it is right.
fn is_one_of(key: &[u8], keys: &[String]) -> bool {
    let shown = Sha256::digest(key);
    let same = |own: &String| {
        let own = Sha256::digest(own.as_bytes());
        shown.iter().zip(own.iter()).fold(0, |differing, (a, b)| differing | (a ^ b)) == 0
    };
    // No early exit: all keys are compared.
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
    fn each_tenant_has_salts_of_its_own() {
        let of = |digest| Tenant { digest, shares_prefix_cache: false };
        let salt = |digest, salt: Option<&str>| of(digest).salt(salt.map(str::to_owned));
        assert_eq!((salt(None, None), salt(None, Some("a"))), (None, Some("a".into())));
        let all = [
            salt(Some(1), None),
            salt(Some(1), Some("a")),
            salt(Some(2), None),
            salt(Some(2), Some("a")),
            salt(None, Some("a")),
        ];
        let distinct: std::collections::BTreeSet<_> = all.iter().collect();
        assert_eq!(distinct.len(), all.len(), "{all:?}");
    }

    #[test]
    fn a_key_is_what_follows_bearer() {
        let key = |value| {
            let mut headers = HeaderMap::new();
            headers.insert(header::AUTHORIZATION, HeaderValue::from_static(value));
            presented(&headers).map(<[u8]>::to_vec)
        };
        assert_eq!(key("Bearer abc"), Some(b"abc".to_vec()));
        assert_eq!(key("bearer  abc "), Some(b"abc".to_vec()));
        assert_eq!(key("Basic abc"), None);
        assert_eq!(key("abc"), None);
    }
}
