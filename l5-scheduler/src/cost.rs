//! What a step takes, as a formula.

use serde::{Deserialize, Serialize};

/// The time of a step: so much for any, and so much for each token and each byte of keys and values that are read.
///
/// ```text
/// seconds = base + per_prefill_token * P + per_decode_token * D + per_kv_byte * B
/// ```
///
/// Measured by `strata bench --fit-cost`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct CostModel {
    /// Seconds of any step.
    pub base: f64,
    /// Seconds for each token of a prompt.
    pub per_prefill_token: f64,
    /// Seconds for each request that decodes.
    pub per_decode_token: f64,
    /// Seconds for each byte of keys and values that attention reads.
    pub per_kv_byte: f64,
    /// Bytes of keys and values of a token, all layers together.
    pub kv_bytes_per_token: f64,
}

/// What a step does, as far as its time goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepLoad {
    /// Tokens of rows with more than one: prompts, and what comes back after a preemption.
    pub prefill_tokens: usize,
    /// Rows of one token.
    pub decode_tokens: usize,
    /// Keys that are read: the sum over rows of their length after this step.
    pub kv_tokens: usize,
}

impl CostModel {
    /// Seconds of a step.
    pub fn seconds(&self, load: &StepLoad) -> f64 {
        let _ = load;
        todo!()
    }
}
