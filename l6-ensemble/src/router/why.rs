//! Why a request went where it went.

use std::fmt;

use serde::Serialize;

use super::tripwire::Tripwire;

/// What decided a route. A client that names a specialist is not routed at all, so that is no reason here.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "by", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Why {
    /// The client declared an intent, and the configuration has a class for it.
    DeclaredIntent {
        /// The intent.
        intent: String,
    },
    /// A tripwire fired.
    Rule {
        /// The tripwire.
        name: Tripwire,
        /// What it found.
        evidence: String,
    },
    /// The classifier found a lane probable enough.
    Classifier {
        /// Probability of the lane.
        score: f32,
    },
    /// The classifier found no lane probable enough, or text that no lane serves more probable.
    Rejected {
        /// Probability of the best lane.
        score: f32,
    },
    /// No rule decided, and there is no classifier.
    Fallback,
}

impl Why {
    /// Name of the reason, for labels of metrics: one of a few words.
    pub fn name(&self) -> &'static str {
        match self {
            Self::DeclaredIntent { .. } => "declared_intent",
            Self::Rule { .. } => "rule",
            Self::Classifier { .. } => "classifier",
            Self::Rejected { .. } => "rejected",
            Self::Fallback => "fallback",
        }
    }
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::DeclaredIntent { intent } => write!(f, "the client declared the intent {intent}"),
            Self::Rule { name, evidence } => write!(f, "rule {name}: {evidence}"),
            Self::Classifier { score } => write!(f, "the classifier, with probability {score:.2}"),
            Self::Rejected { score } => {
                write!(f, "rejected: the best lane has probability {score:.2}")
            }
            Self::Fallback => f.write_str("no rule decided, and there is no classifier"),
        }
    }
}
