//! Why a request ended.

use std::fmt;

/// Why a request ended. Every accepted request ends exactly once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FinishReason {
    /// At an end token, a stop token or a stop string, or because its guide allows no further token.
    Stop,
    /// At its `max_tokens`, or the model's longest sequence.
    Length,
    /// Its next token does not fit the KV pool, even with no other request running.
    KvExhausted,
    /// The client aborted it.
    Aborted,
    /// A step failed: the model could not go on with it.
    Failed,
}

impl FinishReason {
    /// Name of the reason in traces, and in OpenAI's API where that has one.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Length => "length",
            Self::KvExhausted => "kv_exhausted",
            Self::Aborted => "abort",
            Self::Failed => "error",
        }
    }
}

impl fmt::Display for FinishReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
