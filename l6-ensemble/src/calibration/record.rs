//! One line of the calibration stream.

use serde::{Deserialize, Serialize};

use super::{Agreement, InputDigest, Verdicts};
use crate::shadow::ShadowReason;

/// Version of the record's format.
pub const RECORD_VERSION: u32 = 1;

/// A routed request: the decision, the responses, and the verdicts about them.
///
/// Unknown fields are ignored when a record is read, so that a later version can add some.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CalibrationRecord {
    /// [`RECORD_VERSION`].
    pub version: u32,
    /// Seconds since the Unix epoch.
    pub time: f64,
    /// Digest of the input.
    pub digest: InputDigest,
    /// Intent of the request; `unspecified` if it declared none.
    pub intent: String,
    /// What decided the route.
    pub decided_by: DecidedBy,
    /// The decision in words, with its evidence. It is the router's text, never text of the request.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub why: String,
    /// Calibrated score of the first choice, from 0 to 1.
    pub score: f32,
    /// Scores of all classes, by name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub scores: Vec<(String, f32)>,
    /// Response of the primary.
    pub primary: Response,
    /// Response of the shadow, if there was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shadow: Option<ShadowResponse>,
    /// The prompt; the queue removes it unless the configuration says to store prompts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt: Option<String>,
}

/// What decided a route.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DecidedBy {
    /// The client named the specialist.
    Override,
    /// The declared intent.
    Intent,
    /// A rule or tripwire.
    Rule,
    /// The classifier.
    #[default]
    Classifier,
    /// No class was likely enough, and the fallback lane served the request.
    Rejected,
    /// The chosen lane was demoted, full or down, and another one served the request.
    Fallback,
}

/// A response: its lane, its latency, and the verdicts about it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Response {
    /// Name of the lane.
    pub lane: String,
    /// Verdicts about the response.
    #[serde(flatten)]
    pub verdicts: Verdicts,
    /// Milliseconds to the first token.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ttft_ms: Option<f64>,
    /// Milliseconds to the last token.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub total_ms: Option<f64>,
    /// Number of output tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output_tokens: Option<u64>,
}

/// A shadow's response.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ShadowResponse {
    /// Why the request had a shadow.
    pub reason: ShadowReason,
    /// The response.
    #[serde(flatten)]
    pub response: Response,
    /// How it agrees with the primary's.
    #[serde(default)]
    pub agreement: Agreement,
}

impl CalibrationRecord {
    /// A record of a route by the classifier, without verdicts. `time` is in seconds since the Unix epoch, `score` the
    /// calibrated score of the first choice.
    pub fn new(time: f64, digest: InputDigest, intent: &str, primary: &str, score: f32) -> Self {
        Self {
            version: RECORD_VERSION,
            time,
            digest,
            intent: intent.to_owned(),
            decided_by: DecidedBy::Classifier,
            why: String::new(),
            score,
            scores: vec![],
            primary: Response { lane: primary.to_owned(), ..Response::default() },
            shadow: None,
            prompt: None,
        }
    }
}
