//! Errors of servers on other machines. Clients see them, so they name no address: the log does.

use l5_scheduler::RelayFailure;
use l5_scheduler::engine::StartError;

/// Why a remote replica cannot be started.
#[derive(Debug, thiserror::Error)]
pub enum StartRemoteError {
    /// The variable with the API key is not set.
    #[error(
        "the environment variable {0}, which has the API key of a remote replica, is not set: set it"
    )]
    NoKey(String),
    /// The API key is no header value.
    #[error("the API key in the environment variable {0} has characters that a header cannot have")]
    InvalidKey(String),
    /// The HTTP client cannot be created.
    #[error("the client for remote replicas cannot be created: {0}")]
    Client(#[from] reqwest::Error),
    /// The threads of the client cannot be started.
    #[error("the threads for remote replicas cannot be started: {0}")]
    Threads(#[from] std::io::Error),
    /// The relay cannot be started.
    #[error(transparent)]
    Relay(#[from] StartError),
}

/// Why a request to a remote server failed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum RemoteError {
    /// No connection, or it broke.
    #[error("the remote server cannot be reached: {0}")]
    Connection(String),
    /// The server is silent.
    #[error("the remote server sent nothing for {seconds} seconds {phase}")]
    Silent {
        /// The limit.
        seconds: f64,
        /// `before its response` or `within its response`.
        phase: &'static str,
    },
    /// The server refused the request.
    #[error("the remote server answered with status {status}: {message}")]
    Status {
        /// Status code.
        status: u16,
        /// Message of the server.
        message: String,
    },
    /// The response is no stream of completions.
    #[error("the remote server sent a malformed response: {0}")]
    Malformed(String),
    /// The response has text and no token ids.
    #[error(
        "the remote server sent text without token ids: a remote replica must support `return_token_ids`, as vLLM and \
         strata do, or be a llama-server with `api = \"llama-server\"` in the ensemble file"
    )]
    NoTokenIds,
    /// The server ended the response with an error.
    #[error("the remote server failed within its response: {0}")]
    Failed(String),
}

impl RemoteError {
    /// Whether the server would fail other requests as well: it is broken, or it is not the one that was meant. A busy
    /// server is not, and neither is one that refuses what a request asks for.
    pub(super) fn is_the_servers(&self) -> bool {
        match self {
            Self::Status { status, .. } => matches!(status, 401 | 403 | 404) || *status >= 500,
            _ => true,
        }
    }

    /// What this failure means for its request, provided that nothing of the response has arrived.
    pub(super) fn before_output(&self) -> RelayFailure {
        match self {
            Self::Connection(_) => RelayFailure::Transient,
            Self::Status { status, .. } if *status == 429 || *status >= 500 => {
                RelayFailure::Transient
            }
            // It has had its time: the client would wait as long again.
            Self::Silent { .. } => RelayFailure::Unserved,
            // The key or the name of the model is wrong there.
            Self::Status { status: 401 | 403 | 404, .. } => RelayFailure::Unserved,
            Self::Status { .. } | Self::Malformed(_) | Self::NoTokenIds | Self::Failed(_) => {
                RelayFailure::Final
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_moves_after_failures_that_may_pass_or_are_this_servers_own() {
        let status = |status| RemoteError::Status { status, message: "no".into() };
        let all = [
            (RemoteError::Connection("x".into()), RelayFailure::Transient),
            (
                RemoteError::Silent { seconds: 1.0, phase: "before its response" },
                RelayFailure::Unserved,
            ),
            (status(400), RelayFailure::Final),
            (status(401), RelayFailure::Unserved),
            (status(404), RelayFailure::Unserved),
            (status(429), RelayFailure::Transient),
            (status(500), RelayFailure::Transient),
            (status(503), RelayFailure::Transient),
            (RemoteError::Malformed("x".into()), RelayFailure::Final),
            (RemoteError::NoTokenIds, RelayFailure::Final),
            (RemoteError::Failed("x".into()), RelayFailure::Final),
        ];
        for (error, failure) in all {
            assert_eq!(error.before_output(), failure, "{error}");
        }
        assert!([401, 404, 500].into_iter().all(|code| status(code).is_the_servers()));
        assert!(![400, 422, 429].into_iter().any(|code| status(code).is_the_servers()));
        assert!(RemoteError::NoTokenIds.is_the_servers());
    }
}
