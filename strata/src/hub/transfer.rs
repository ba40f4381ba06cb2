//! Downloads one file over HTTP: with timeouts, resumed after an interruption, checked at the end.
//!
//! `hf-hub` could download too, but without timeouts and checks of hashes, and it leaves partial files. So it provides
//! addresses and the layout of the cache, and this module downloads.

use std::io::Read;
use std::thread;
use std::time::Duration;

use ureq::Agent;
use ureq::config::RedirectAuthHeaders;
use ureq::http::StatusCode;

use super::progress::Meter;
use super::store::Partial;
use super::{HubError, Options};

/// Maximum number of consecutive attempts without a new byte.
const MAX_FRUITLESS_ATTEMPTS: u32 = 2;

/// Target of a request to the hub, for messages.
#[derive(Debug, Clone, Copy)]
pub(super) struct Target<'a> {
    pub(super) id: &'a str,
    pub(super) revision: &'a str,
    pub(super) file: Option<&'a str>,
}

/// Applies the limits of [`Options`] to a client or to a single request. A macro, since the two builders share methods
/// but no trait that can be named from here.
macro_rules! limits {
    ($config:expr, $options:expr) => {{
        let config = $config
            .timeout_resolve(Some($options.connect_timeout))
            .timeout_connect(Some($options.connect_timeout))
            .timeout_recv_response(Some($options.read_timeout))
            .timeout_per_read(Some($options.read_timeout))
            // This module checks the status: a 401 and a 404 need different advice.
            .http_status_as_error(false);
        // Servers on this machine are reached without a proxy.
        if $crate::hub::transfer::is_loopback(&$options.endpoint) {
            config.proxy(None)
        } else {
            config
        }
    }};
}
pub(super) use limits;

/// Creates an HTTP client for the hub, with timeouts of seconds: without network the next source, or the error, must
/// follow soon.
pub(super) fn agent(options: &Options) -> Agent {
    limits!(Agent::config_builder(), options)
        // The hub sends large files from another host, which must not see the token.
        .redirect_auth_headers(RedirectAuthHeaders::SameHost)
        .build()
        .into()
}

pub(super) fn is_loopback(endpoint: &str) -> bool {
    let host = endpoint.split_once("://").map_or(endpoint, |(_, rest)| rest);
    ["127.", "localhost", "[::1]"].iter().any(|local| host.starts_with(local))
}

/// Error of a request without a response.
pub(super) fn unreachable(options: &Options, error: &ureq::Error) -> HubError {
    HubError::Unreachable { endpoint: options.endpoint.clone(), reason: error.to_string() }
}

/// Turns a status into the error that says what to do; `code` is the hub's `x-error-code` header.
pub(super) fn check(
    status: StatusCode,
    code: Option<&str>,
    url: &str,
    target: Target<'_>,
    options: &Options,
) -> Result<(), HubError> {
    let id = target.id.to_string();
    let endpoint = options.endpoint.clone();
    Err(match (status.as_u16(), target.file) {
        (200..=299, _) => return Ok(()),
        // Without a token, the hub returns 401 for a missing repository as well, so as not to reveal private ones.
        (401, _) => HubError::Unauthorized { id, token_sent: options.token.is_some() },
        (403, _) => HubError::Forbidden { id, endpoint },
        (404, file) => match (code, file) {
            (Some("RevisionNotFound"), _) => {
                HubError::RevisionNotFound { id, revision: target.revision.to_string() }
            }
            (Some("RepoNotFound"), _) | (_, None) => HubError::RepoNotFound { id, endpoint },
            (_, Some(file)) => HubError::FileNotFound {
                id,
                revision: target.revision.to_string(),
                file: file.to_string(),
            },
        },
        (status, _) => HubError::Status { url: url.to_string(), status },
    })
}

/// Downloads `url` into `partial`, and renames the file to its final name.
///
/// # Errors
/// Those of [`check`]; [`HubError::Unreachable`] if the first connection fails; [`HubError::Interrupted`] if a later
/// one does; those of writing, checking and renaming. An error leaves no partial file.
pub(super) fn download(
    agent: &Agent,
    url: &str,
    mut partial: Partial,
    target: Target<'_>,
    options: &Options,
    meter: &Meter,
) -> Result<(), HubError> {
    let before = meter.position();
    // Only new bytes count as progress: a server that restarts each time must not be retried forever.
    let (mut fruitless, mut furthest) = (0, 0);
    loop {
        let reason = match attempt(agent, url, &mut partial, target, options, meter, before)? {
            Outcome::Complete => return partial.commit(url),
            Outcome::Interrupted(reason) => reason,
        };
        fruitless = if partial.received() > furthest { 0 } else { fruitless + 1 };
        furthest = furthest.max(partial.received());
        if fruitless >= MAX_FRUITLESS_ATTEMPTS {
            return Err(HubError::Interrupted {
                url: url.to_string(),
                received: partial.received(),
                reason,
            });
        }
        thread::sleep(Duration::from_millis(200 << fruitless));
    }
}

/// End of one attempt.
enum Outcome {
    /// The body has the expected length, or ended without a known one.
    Complete,
    /// The connection failed before the end.
    Interrupted(String),
}

fn attempt(
    agent: &Agent,
    url: &str,
    partial: &mut Partial,
    target: Target<'_>,
    options: &Options,
    meter: &Meter,
    before: u64,
) -> Result<Outcome, HubError> {
    // A compressed body could be neither measured nor resumed.
    let mut request = agent.get(url).header("Accept-Encoding", "identity");
    if let Some(token) = &options.token {
        request = request.header("Authorization", format!("Bearer {token}"));
    }
    let start = partial.received();
    if start > 0 {
        request = request.header("Range", format!("bytes={start}-"));
    }
    let response = match request.call() {
        Ok(response) => response,
        Err(error) if start == 0 => return Err(unreachable(options, &error)),
        Err(error) => return Ok(Outcome::Interrupted(error.to_string())),
    };
    let header = |name: &str| response.headers().get(name).and_then(|value| value.to_str().ok());
    check(response.status(), header("x-error-code"), url, target, options)?;

    let continued = response.status() == StatusCode::PARTIAL_CONTENT
        && header("content-range")
            .is_some_and(|range| range.starts_with(&format!("bytes {start}-")));
    // The length of a body that is compressed nevertheless is not that of the decoded bytes.
    let plain = header("content-encoding").is_none_or(|encoding| encoding == "identity");
    let length = header("content-length").filter(|_| plain).and_then(|n| n.parse::<u64>().ok());
    if start > 0 && !continued {
        partial.restart()?;
    }
    meter.set(before + partial.received());
    if let Some(length) = length {
        partial.expect_size(partial.received() + length);
    }

    let mut body = response.into_body().into_reader();
    let mut buffer = vec![0; 256 << 10];
    loop {
        match body.read(&mut buffer) {
            Ok(0) => break,
            Ok(n) => partial.write(&buffer[..n])?,
            Err(error) => return Ok(Outcome::Interrupted(error.to_string())),
        }
        meter.set(before + partial.received());
        // A server that never stops must not fill the disk.
        if partial.size().is_some_and(|size| partial.received() > size) {
            break;
        }
    }
    match partial.size() {
        Some(size) if partial.received() < size => {
            Ok(Outcome::Interrupted("the connection was closed early".to_string()))
        }
        _ => Ok(Outcome::Complete),
    }
}
