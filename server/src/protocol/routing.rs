//! Fields that decide which specialist serves a request, and by when.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::whole;
use crate::error::ApiError;

/// Routing and deadline: fields of completions and chats. A server of one model has one specialist, so only the deadline
/// and the decoding policy matter there.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Routing {
    /// What the request is for: `codegen`, `debug`, `build_fix`, `review`, or another intent of the ensemble's file.
    #[schema(max_length = 64)]
    pub intent: Option<String>,
    /// Name of the specialist that serves the request. The router is not asked.
    pub specialist: Option<String>,
    /// Whether a wrong result would cost much. The second-best specialist then generates a response as well, which is
    /// compared and not returned.
    pub high_stakes: Option<bool>,
    /// Time from the request's arrival by which the response must be complete, in milliseconds. A request that cannot be
    /// completed in time is rejected with 429.
    #[schema(minimum = 1)]
    #[serde(deserialize_with = "whole::option")]
    pub deadline_ms: Option<u32>,
    /// How to sample, by name; `temperature`, `top_p` and `typical_p` take precedence.
    pub decoding_policy: Option<DecodingPolicy>,
}

/// A way of sampling.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum DecodingPolicy {
    /// The likeliest token: temperature 0.
    Greedy,
    /// Typical sampling: temperature 0.7, `typical_p` 0.95.
    Typical,
    /// Plain sampling: temperature 0.8, `top_p` 0.95.
    Temperature,
}

/// Maximum number of bytes of an intent.
const MAX_INTENT_BYTES: usize = 64;

impl Routing {
    /// Checks the fields one by one.
    ///
    /// # Errors
    /// [`ApiError`] that names the invalid field.
    pub fn check(&self) -> Result<(), ApiError> {
        if self.deadline_ms == Some(0) {
            return Err(ApiError::param("deadline_ms", "`deadline_ms` must be at least 1, got 0"));
        }
        let bytes = self.intent.as_ref().map_or(0, String::len);
        if bytes > MAX_INTENT_BYTES {
            let message =
                format!("`intent` must be at most {MAX_INTENT_BYTES} bytes long, got {bytes}");
            return Err(ApiError::param("intent", message));
        }
        Ok(())
    }

    /// Time from the request's arrival to its deadline.
    pub fn deadline(&self) -> Option<Duration> {
        self.deadline_ms.map(|ms| Duration::from_millis(ms.into()))
    }
}

impl From<DecodingPolicy> for l6_ensemble::DecodingPolicy {
    fn from(policy: DecodingPolicy) -> Self {
        match policy {
            DecodingPolicy::Greedy => Self::Greedy,
            DecodingPolicy::Typical => Self::Typical,
            DecodingPolicy::Temperature => Self::Temperature,
        }
    }
}
