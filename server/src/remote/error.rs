//! Errors of servers on other machines. Clients see them, so they name no address: the log does.

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
         strata do"
    )]
    NoTokenIds,
    /// The server ended the response with an error.
    #[error("the remote server failed within its response: {0}")]
    Failed(String),
}

impl RemoteError {
    /// The beginning of each of these errors.
    pub const PREFIX: &str = "the remote server ";

    /// Whether the same request may succeed if it is sent again, provided that nothing of its response has arrived.
    pub(super) fn may_pass(&self) -> bool {
        match self {
            Self::Connection(_) => true,
            Self::Status { status, .. } => *status == 429 || *status >= 500,
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_error_begins_as_the_prefix_says_and_only_passing_ones_are_retried() {
        let status = |status| RemoteError::Status { status, message: "no".into() };
        let all = [
            (RemoteError::Connection("x".into()), true),
            (RemoteError::Silent { seconds: 1.0, phase: "before its response" }, false),
            (status(400), false),
            (status(404), false),
            (status(429), true),
            (status(500), true),
            (status(503), true),
            (RemoteError::Malformed("x".into()), false),
            (RemoteError::NoTokenIds, false),
            (RemoteError::Failed("x".into()), false),
        ];
        for (error, passes) in all {
            assert!(error.to_string().starts_with(RemoteError::PREFIX), "{error}");
            assert_eq!(error.may_pass(), passes, "{error}");
        }
    }
}
