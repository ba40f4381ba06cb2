//! What a step takes, as a formula.

mod fit;

use serde::{Deserialize, Serialize};

use crate::Step;

pub use fit::Fit;

/// The time of a step: so much for any, and so much for each token and each byte of keys and values that are read.
///
/// ```text
/// seconds = base + per_prefill_token * P + per_decode_token * D + per_kv_byte * B
/// ```
///
/// Measured by `strata bench --fit-cost`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
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

impl StepLoad {
    /// What a planned step does.
    pub fn of(step: &Step) -> Self {
        // exercise l5.clock
        let mut load = Self::default();
        for row in &step.rows {
            match row.len {
                1 => load.decode_tokens += 1,
                len => load.prefill_tokens += len,
            }
            // A token attends to all before it and to itself.
            load.kv_tokens += row.computed + row.len;
        }
        load
        // end of exercise
    }
}

impl CostModel {
    /// SmolLM2-135M in bf16 on two cores of a server (AVX-512 with bf16), to within a tenth of what `strata bench` says
    /// there: 177, 1,109 and 1,946 tokens a second decoded by 1, 8 and 32 sequences, 3,378 of a prompt. For another
    /// machine or model, `strata bench --fit-cost` measures one.
    pub const SMOLLM2_TWO_CORES: CostModel = CostModel {
        base: 5.0e-3,
        per_prefill_token: 0.286e-3,
        per_decode_token: 0.27e-3,
        per_kv_byte: 0.021e-9,
        kv_bytes_per_token: 23_040.0,
    };

    /// Seconds of a step.
    pub fn seconds(&self, load: &StepLoad) -> f64 {
        // exercise l5.clock
        let kv_bytes = load.kv_tokens as f64 * self.kv_bytes_per_token;
        self.base
            + self.per_prefill_token * load.prefill_tokens as f64
            + self.per_decode_token * load.decode_tokens as f64
            + self.per_kv_byte * kv_bytes
        // end of exercise
    }

    /// Read a model, as `strata bench --fit-cost` writes it.
    ///
    /// # Errors
    /// [`CostError`].
    pub fn from_json(json: &str) -> Result<Self, CostError> {
        let model: Self = serde_json::from_str(json)?;
        model.check()?;
        Ok(model)
    }

    /// Look for a clock that would stand still or go backwards.
    ///
    /// # Errors
    /// [`CostError`].
    pub fn check(&self) -> Result<(), CostError> {
        let parts = [
            ("base", self.base),
            ("per_prefill_token", self.per_prefill_token),
            ("per_decode_token", self.per_decode_token),
            ("per_kv_byte", self.per_kv_byte),
            ("kv_bytes_per_token", self.kv_bytes_per_token),
        ];
        if let Some((name, value)) = parts.into_iter().find(|(_, v)| !v.is_finite() || *v < 0.0) {
            return Err(CostError::NoTime { name, value });
        }
        if self.base == 0.0 && (self.per_prefill_token == 0.0 || self.per_decode_token == 0.0) {
            return Err(CostError::Free);
        }
        Ok(())
    }
}

/// Something that is no cost model.
#[derive(Debug, thiserror::Error)]
pub enum CostError {
    /// Not JSON, or not these fields.
    #[error("not a cost model as `strata bench --fit-cost FILE` writes it: {0}")]
    Json(#[from] serde_json::Error),
    /// Less than nothing, or nothing known.
    #[error("{name} is {value}: a cost is 0 or above; fit the model again")]
    NoTime {
        /// The field.
        name: &'static str,
        /// What it says.
        value: f64,
    },
    /// Steps that take no time.
    #[error(
        "some steps would take no time: make base larger than 0, or both per_prefill_token and per_decode_token"
    )]
    Free,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_model_is_near_what_was_measured() {
        let cost = CostModel::SMOLLM2_TWO_CORES;
        let decode = |rows| {
            // Contexts grow from 128 to 256 tokens.
            let load = StepLoad { prefill_tokens: 0, decode_tokens: rows, kv_tokens: rows * 192 };
            rows as f64 / cost.seconds(&load)
        };
        let prompt = StepLoad { prefill_tokens: 512, decode_tokens: 0, kv_tokens: 512 };
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
