//! One file over HTTP: with timeouts, taken up again where the connection broke off, checked at the end.
//!
//! `hf-hub` could download too, but without any timeout, without checking a hash, and leaving its half-finished
//! `.part` behind. So it says *where* things are (addresses, the layout of the cache), and the bytes move here.

use std::io::Read;
use std::thread;
use std::time::Duration;

use ureq::Agent;
use ureq::config::RedirectAuthHeaders;
use ureq::http::StatusCode;

use super::progress::Meter;
use super::store::Partial;
use super::{HubError, Options};

/// How often a broken connection is taken up again without a single new byte before the fetch gives up.
const FRUITLESS_TRIES: u32 = 2;

/// What of the hub is being asked for, for the messages.
#[derive(Debug, Clone, Copy)]
pub(super) struct Asked<'a> {
    pub(super) id: &'a str,
    pub(super) revision: &'a str,
    pub(super) file: Option<&'a str>,
}

/// Puts the limits of [`Options`] on a client or on a single request. A macro, since the two builders share methods
/// but no trait that can be named from here.
macro_rules! limits {
    ($config:expr, $options:expr) => {{
        let config = $config
            .timeout_resolve(Some($options.connect_timeout))
            .timeout_connect(Some($options.connect_timeout))
            .timeout_recv_response(Some($options.read_timeout))
            .timeout_per_read(Some($options.read_timeout))
            // Statuses are looked at here: a 401 and a 404 need different advice.
            .http_status_as_error(false);
        // A proxy is for the world outside; what runs on this machine is asked directly.
        if $crate::hub::transfer::is_loopback(&$options.endpoint) {
            config.proxy(None)
        } else {
            config
        }
    }};
}
pub(super) use limits;

/// An HTTP client for the hub that never waits for minutes: a machine without network must get to the next source,
/// or to a clear error, in seconds.
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

/// A failure to get any answer.
pub(super) fn unreachable(options: &Options, error: &ureq::Error) -> HubError {
    HubError::Unreachable { endpoint: options.endpoint.clone(), reason: error.to_string() }
}

/// Turns a status into the error that says what to do; `code` is the hub's `x-error-code` header.
pub(super) fn check(
    status: StatusCode,
    code: Option<&str>,
    url: &str,
    asked: Asked<'_>,
    options: &Options,
) -> Result<(), HubError> {
    let id = asked.id.to_string();
    let endpoint = options.endpoint.clone();
    Err(match (status.as_u16(), asked.file) {
        (200..=299, _) => return Ok(()),
        // The hub answers 401 to the nameless for a repository that is not there as well: it does not tell who has what.
        (401, _) => HubError::Unauthorized { id, token_sent: options.token.is_some() },
        (403, _) => HubError::Forbidden { id, endpoint },
        (404, file) => match (code, file) {
            (Some("RevisionNotFound"), _) => {
                HubError::RevisionNotFound { id, revision: asked.revision.to_string() }
            }
            (Some("RepoNotFound"), _) | (_, None) => HubError::RepoNotFound { id, endpoint },
            (_, Some(file)) => HubError::FileNotFound {
                id,
                revision: asked.revision.to_string(),
                file: file.to_string(),
            },
        },
        (status, _) => HubError::Status { url: url.to_string(), status },
    })
}

/// Fetches `url` into `partial` and gives the file its final name.
///
/// # Errors
/// Those of [`check`]; [`HubError::Unreachable`] when the very first connection fails; [`HubError::BrokenOff`] when
/// later ones do; those of writing, checking and renaming. After an error nothing of the file is left.
pub(super) fn download(
    agent: &Agent,
    url: &str,
    mut partial: Partial,
    asked: Asked<'_>,
    options: &Options,
    meter: &Meter,
) -> Result<(), HubError> {
    let before = meter.position();
    // Only getting further than ever counts as progress: a server that starts over each time must not keep us for ever.
    let (mut fruitless, mut furthest) = (0, 0);
    loop {
        let reason = match attempt(agent, url, &mut partial, asked, options, meter, before)? {
            Outcome::Whole => return partial.commit(url),
            Outcome::BrokeOff(reason) => reason,
        };
        fruitless = if partial.received() > furthest { 0 } else { fruitless + 1 };
        furthest = furthest.max(partial.received());
        if fruitless >= FRUITLESS_TRIES {
            return Err(HubError::BrokenOff {
                url: url.to_string(),
                received: partial.received(),
                reason,
            });
        }
        thread::sleep(Duration::from_millis(200 << fruitless));
    }
}

enum Outcome {
    /// The body ended where it should, or where nobody knows better.
    Whole,
    /// The connection failed on the way.
    BrokeOff(String),
}

fn attempt(
    agent: &Agent,
    url: &str,
    partial: &mut Partial,
    asked: Asked<'_>,
    options: &Options,
    meter: &Meter,
    before: u64,
) -> Result<Outcome, HubError> {
    // A compressed body could neither be measured nor continued.
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
        Err(error) => return Ok(Outcome::BrokeOff(error.to_string())),
    };
    let header = |name: &str| response.headers().get(name).and_then(|value| value.to_str().ok());
    check(response.status(), header("x-error-code"), url, asked, options)?;

    let continued = response.status() == StatusCode::PARTIAL_CONTENT
        && header("content-range")
            .is_some_and(|range| range.starts_with(&format!("bytes {start}-")));
    // What was compressed against our wish is measured in other bytes than those that arrive here.
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
            Err(error) => return Ok(Outcome::BrokeOff(error.to_string())),
        }
        meter.set(before + partial.received());
        // A server that never stops must not fill the disk.
        if partial.size().is_some_and(|size| partial.received() > size) {
            break;
        }
    }
    match partial.size() {
        Some(size) if partial.received() < size => {
            Ok(Outcome::BrokeOff("the connection was closed early".to_string()))
        }
        _ => Ok(Outcome::Whole),
    }
}
