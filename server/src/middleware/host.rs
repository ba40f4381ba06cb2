//! Host names under which a server on loopback may be addressed.
//!
//! A page of any site can let its own name resolve to 127.0.0.1 once it is loaded (DNS rebinding), and the browser
//! then lets it read the responses of a server there. Its requests still have that name in `Host`. So a server that
//! listens on loopback accepts loopback names, and those that the operator adds (a reverse proxy's, for example).

use std::net::IpAddr;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use crate::error::{ApiError, quoted};
use crate::options::ServerOptions;

/// Names under which the server may be addressed. Clones share them.
#[derive(Clone, Debug)]
pub struct AllowedHosts {
    /// The address that the server listens on.
    address: IpAddr,
    /// Names beside loopback's own.
    names: Arc<[String]>,
}

impl AllowedHosts {
    /// The names that the operator allows.
    pub fn new(options: &ServerOptions) -> Self {
        Self { address: options.host, names: options.allowed_hosts.as_slice().into() }
    }
}

/// Passes requests on that name this server, and refuses others.
pub async fn check(State(hosts): State<AllowedHosts>, request: Request, next: Next) -> Response {
    if !hosts.address.is_loopback() || is_allowed(request.headers(), &hosts.names) {
        return next.run(request).await;
    }
    let named = request.headers().get(header::HOST).and_then(|host| host.to_str().ok());
    let message = format!(
        "Host `{}` is not allowed on this server, which listens on {}. Use localhost, or start the server with \
         --allowed-hosts.",
        quoted(named.unwrap_or("?")),
        hosts.address
    );
    let error = ApiError::new(StatusCode::FORBIDDEN, "invalid_request_error", message);
    error.with_code("host_not_allowed").into_response()
}

/// Returns whether `Host` is allowed, or missing: browsers always send it.
fn is_allowed(headers: &HeaderMap, allowed: &[String]) -> bool {
    let Some(host) = headers.get(header::HOST) else { return true };
    let Ok(host) = host.to_str() else { return false };
    let name = without_port(host);
    let is_ours = |own: &String| own == "*" || own.eq_ignore_ascii_case(name);
    is_loopback(name) || allowed.iter().any(is_ours)
}

fn without_port(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|b| b.is_ascii_digit()) && !name.ends_with(':') => {
            name
        }
        _ => host,
    }
}

fn is_loopback(name: &str) -> bool {
    let name = name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase();
    let address = name.trim_start_matches('[').trim_end_matches(']');
    name == "localhost"
        || name.ends_with(".localhost")
        || address.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::HeaderValue;

    fn allowed(host: &'static str, more: &[&str]) -> bool {
        let mut headers = HeaderMap::new();
        headers.insert(header::HOST, HeaderValue::from_static(host));
        let more: Vec<String> = more.iter().map(ToString::to_string).collect();
        is_allowed(&headers, &more)
    }

    #[test]
    fn loopback_has_these_names_and_no_others() {
        for host in [
            "localhost",
            "LOCALHOST:8000",
            "strata.localhost:1",
            "127.0.0.1",
            "127.0.0.1:8000",
            "127.9.9.9",
            "[::1]:8000",
            "[::1]",
            "localhost.",
        ] {
            assert!(allowed(host, &[]), "{host}");
        }
        for host in [
            "evil.example",
            "evil.example:8000",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "notlocalhost",
            "10.0.0.1",
            "0.0.0.0",
            "",
            "[::2]",
        ] {
            assert!(!allowed(host, &[]), "{host}");
        }
        assert!(is_allowed(&HeaderMap::new(), &[]));
    }

    #[test]
    fn an_operator_may_add_names() {
        assert!(allowed("Models.example:443", &["models.example"]));
        assert!(!allowed("evil.example", &["models.example"]));
        assert!(allowed("evil.example", &["*"]));
    }
}
