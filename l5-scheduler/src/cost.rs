//! Cost model: the duration of a step as a formula.

mod fit;

use serde::{Deserialize, Serialize};

use crate::StepPlan;

pub use fit::Fit;

/// Cost model of a step: a constant, and a cost for each token and for each byte of keys and values read.
///
/// ```text
/// seconds = base + per_prefill_token * P + per_decode_token * D + per_verify_token * V + per_kv_byte * B
/// ```
///
/// `strata bench --fit-cost` measures one.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CostModel {
    /// Seconds of any step.
    pub base: f64,
    /// Seconds for each token of a row with several tokens (prefill).
    pub per_prefill_token: f64,
    /// Seconds for each row of one token (decode).
    pub per_decode_token: f64,
    /// Seconds for each draft. `None`: a draft costs as much as a token of a prompt, since it is computed in a row of
    /// several tokens too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub per_verify_token: Option<f64>,
    /// Seconds for each byte of keys and values that attention reads.
    pub per_kv_byte: f64,
    /// Bytes of keys and values of one token, over all layers.
    pub kv_bytes_per_token: f64,
    /// Bytes per second that are copied from another memory into the pool, and as many the other way. `None`: a copy
    /// takes no time. It is no part of a step: copies go on while steps run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub load_bytes_per_second: Option<f64>,
}

/// Work of a step, as the cost model counts it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepLoad {
    /// Tokens of rows with more than one, drafts left out: prompts, and what is computed again after a preemption.
    pub prefill_tokens: usize,
    /// Rows of one token, or of one token and drafts.
    pub decode_tokens: usize,
    /// Drafts, which are verified.
    pub verify_tokens: usize,
    /// Keys that attention reads: the sum over rows of their length after this step.
    pub kv_tokens: usize,
}

impl StepLoad {
    /// Work of a planned step.
    pub fn of(step: &StepPlan) -> Self {
        // exercise l5.clock
        let mut load = Self::default();
        for row in &step.rows {
            match row.fed() {
                1 => load.decode_tokens += 1,
                tokens => load.prefill_tokens += tokens,
            }
            load.verify_tokens += row.drafts;
            // A token attends to all tokens before it and to itself.
            load.kv_tokens += row.computed + row.len;
        }
        load
        // end of exercise
    }
}

impl CostModel {
    /// SmolLM2-135M in bf16 on two cores of a server (AVX-512 with bf16), within a tenth of what `strata bench`
    /// measures there: 177, 1,109 and 1,946 tokens a second decoded by 1, 8 and 32 sequences, 3,378 of a prompt. For
    /// another machine or model, `strata bench --fit-cost` measures one.
    pub const SMOLLM2_TWO_CORES: CostModel = CostModel {
        base: 5.0e-3,
        per_prefill_token: 0.286e-3,
        per_decode_token: 0.27e-3,
        per_verify_token: None,
        per_kv_byte: 0.021e-9,
        kv_bytes_per_token: 23_040.0,
        load_bytes_per_second: None,
    };

    /// Duration of a step, in seconds.
    pub fn seconds(&self, load: &StepLoad) -> f64 {
        // exercise l5.clock
        let kv_bytes = load.kv_tokens as f64 * self.kv_bytes_per_token;
        self.base
            + self.per_prefill_token * load.prefill_tokens as f64
            + self.per_decode_token * load.decode_tokens as f64
            + self.per_verify_token.unwrap_or(self.per_prefill_token) * load.verify_tokens as f64
            + self.per_kv_byte * kv_bytes
        // end of exercise
    }

    /// Reads a cost model, as `strata bench --fit-cost` writes it.
    ///
    /// # Errors
    /// [`CostError`].
    pub fn from_json(json: &str) -> Result<Self, CostError> {
        let model: Self = serde_json::from_str(json)?;
        model.check()?;
        Ok(model)
    }

    /// Checks that no coefficient is negative and that every step and every load takes time.
    ///
    /// # Errors
    /// [`CostError`].
    pub fn check(&self) -> Result<(), CostError> {
        let parts = [
            ("base", self.base),
            ("per_prefill_token", self.per_prefill_token),
            ("per_decode_token", self.per_decode_token),
            ("per_verify_token", self.per_verify_token.unwrap_or_default()),
            ("per_kv_byte", self.per_kv_byte),
            ("kv_bytes_per_token", self.kv_bytes_per_token),
        ];
        if let Some((name, value)) = parts.into_iter().find(|(_, v)| !v.is_finite() || *v < 0.0) {
            return Err(CostError::InvalidCoefficient { name, value });
        }
        if let Some(value) = self.load_bytes_per_second.filter(|v| !v.is_finite() || *v <= 0.0) {
            return Err(CostError::InvalidBandwidth(value));
        }
        if self.base == 0.0 && (self.per_prefill_token == 0.0 || self.per_decode_token == 0.0) {
            return Err(CostError::ZeroStepTime);
        }
        Ok(())
    }
}

/// Why a cost model is invalid.
#[derive(Debug, thiserror::Error)]
pub enum CostError {
    /// Not JSON, or unknown or missing fields.
    #[error("invalid cost model: {0}; it must be a file that `strata bench --fit-cost FILE` wrote")]
    Json(#[from] serde_json::Error),
    /// A coefficient is negative or not finite.
    #[error("invalid cost model: {name} must be 0 or above, got {value}; fit the model again")]
    InvalidCoefficient {
        /// Name of the coefficient.
        name: &'static str,
        /// Its value.
        value: f64,
    },
    /// The bandwidth of loads is not above 0.
    #[error("invalid cost model: load_bytes_per_second must be above 0, got {0}")]
    InvalidBandwidth(f64),
    /// Some steps would take no time.
    #[error(
        "invalid cost model: some steps would take no time; base, or both per_prefill_token and per_decode_token, \
         must be above 0"
    )]
    ZeroStepTime,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_model_is_near_what_was_measured() {
        let cost = CostModel::SMOLLM2_TWO_CORES;
        let decode = |rows| {
            // Contexts grow from 128 to 256 tokens.
            let load =
                StepLoad { decode_tokens: rows, kv_tokens: rows * 192, ..StepLoad::default() };
            rows as f64 / cost.seconds(&load)
        };
        let prompt = StepLoad { prefill_tokens: 512, kv_tokens: 512, ..StepLoad::default() };
        let pairs = [
            (decode(1), 177.0),
            (decode(8), 1109.0),
            (decode(32), 1946.0),
            (512.0 / cost.seconds(&prompt), 3378.0),
        ];
        for (got, measured) in pairs {
            assert!((got / measured - 1.0).abs() < 0.1, "{got} tokens/s, and measured {measured}");
        }
    }
}
