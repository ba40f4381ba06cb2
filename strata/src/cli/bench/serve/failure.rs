//! Failures of a request.

use serde_json::Value;

/// Longer texts of servers are cut: they are for a line of a report.
const MAX_MESSAGE_CHARS: usize = 300;

/// Failure of a request.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(in crate::cli::bench) enum Failure {
    /// No connection.
    #[error("no connection: {0}")]
    Connect(String),
    /// The time that `--timeout` gives was over.
    #[error("no end within --timeout")]
    Timeout,
    /// Another status than 200.
    #[error("status {status}: {message}")]
    Status {
        /// The status.
        status: u16,
        /// Message of the server.
        message: String,
        /// Retry-After, in seconds.
        retry_after: Option<u64>,
    },
    /// The connection broke.
    #[error("the connection broke: {0}")]
    Broken(String),
    /// The body ended before the response was complete.
    #[error("the stream ended before the response did")]
    CutOff,
    /// An error as an event.
    #[error("the stream ended with an error: {0}")]
    Event(String),
    /// The body is not an event stream of OpenAI's API.
    #[error("not an event stream of OpenAI's API: {0}")]
    Unreadable(String),
    /// The body of a response that is not streamed is no completion.
    #[error("not a response of OpenAI's API: {0}")]
    NotJson(String),
    /// An end without a single token.
    #[error("a response without any token")]
    Empty,
}

impl Failure {
    /// The heading under which it is counted.
    pub(in crate::cli::bench) fn kind(&self) -> String {
        match self {
            Self::Connect(_) => "no connection".to_owned(),
            Self::Timeout => "timeout".to_owned(),
            Self::Status { status, .. } => format!("status {status}"),
            Self::Broken(_) => "broken connection".to_owned(),
            Self::CutOff => "cut off".to_owned(),
            Self::Event(_) => "error event".to_owned(),
            Self::Unreadable(_) | Self::NotJson(_) => "unreadable".to_owned(),
            Self::Empty => "no tokens".to_owned(),
        }
    }

    /// Creates the failure of a response with an error status.
    pub(super) fn status(status: u16, retry_after: Option<&str>, body: &[u8]) -> Self {
        let retry_after = retry_after.and_then(|text| text.trim().parse().ok());
        let message = match serde_json::from_slice::<Value>(body) {
            Ok(value) => message_of(value.get("error").unwrap_or(&value)),
            Err(_) => short(String::from_utf8_lossy(body).trim()),
        };
        Self::Status { status, message, retry_after }
    }
}

/// Message of an error object, or all of it if it has none.
pub(super) fn message_of(error: &Value) -> String {
    let message = error.get("message").or_else(|| error.get("detail")).unwrap_or(error);
    match message {
        Value::String(text) => short(text),
        other => short(&other.to_string()),
    }
}

fn short(text: &str) -> String {
    match text.char_indices().nth(MAX_MESSAGE_CHARS) {
        None => text.to_owned(),
        Some((end, _)) => format!("{}...", text.get(..end).unwrap_or_default()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_object_is_reported_by_its_message() {
        let body = br#"{"error":{"message":"the queue is full","type":"x","code":429}}"#;
        let failure = Failure::status(429, Some("7"), body);
        assert_eq!(failure.to_string(), "status 429: the queue is full");
        assert_eq!(failure.kind(), "status 429");
        assert!(matches!(failure, Failure::Status { retry_after: Some(7), .. }));
    }

    #[test]
    fn any_other_body_is_reported_shortened() {
        let failure = Failure::status(502, Some("Fri, 31 Dec 1999 23:59:59 GMT"), b"Bad gateway\n");
        assert_eq!(failure.to_string(), "status 502: Bad gateway");
        assert!(matches!(failure, Failure::Status { retry_after: None, .. }));
        let Failure::Status { message, .. } = Failure::status(500, None, &[0xc3, 0xa9].repeat(900))
        else {
            panic!("not a status");
        };
        assert_eq!(message.chars().count(), MAX_MESSAGE_CHARS + 3);
        assert_eq!(message_of(&serde_json::json!({"detail": [1]})), "[1]");
    }
}
