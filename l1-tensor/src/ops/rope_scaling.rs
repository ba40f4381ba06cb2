//! Ways in which checkpoints stretch the frequencies of rotary embedding beyond the context of their first training,
//! and which numbers no frequency can be computed with.
//!
//! [`RopeTable`](super::RopeTable) computes the frequencies. [`RopeScaling::check`] is apart from it, so that a config is
//! refused when it is read, in words of its own keys.

/// Method of stretching frequencies.
#[derive(Clone, Debug, PartialEq, Default)]
pub enum RopeScaling {
    /// No stretching.
    #[default]
    None,
    /// All frequencies slower by one factor: positions are interpolated. Chen et al., "Extending Context
    /// Window of Large Language Models via Positional Interpolation" (2023).
    Linear {
        /// Factor by which the context becomes longer.
        factor: f64,
    },
    /// Llama 3.1: wavelengths above `original_max_position / low_freq_factor` are stretched by `factor`,
    /// those below `original_max_position / high_freq_factor` are kept, and those between are blended.
    Llama3 {
        /// Factor by which the low frequencies become slower.
        factor: f64,
        /// Turns within the original context below which a pair counts as slow.
        low_freq_factor: f64,
        /// Turns within the original context above which a pair counts as fast.
        high_freq_factor: f64,
        /// Maximum context of the first training.
        original_max_position: usize,
    },
    /// YaRN: as above with a linear ramp over the pair's index, and with sharper attention. Peng et al.,
    /// "YaRN: Efficient Context Window Extension of Large Language Models" (2023).
    Yarn {
        /// Factor by which the low frequencies become slower.
        factor: f64,
        /// Turns within the original context from which on a pair is kept (32 by default).
        beta_fast: f64,
        /// Turns within the original context up to which a pair is stretched in full (1).
        beta_slow: f64,
        /// Maximum context of the first training.
        original_max_position: usize,
        /// Factor of cos and sin; `None` derives it from `factor`.
        attention_factor: Option<f64>,
        /// With `mscale_all_dim`: numerator of the derived attention factor (DeepSeek).
        mscale: Option<f64>,
        /// With `mscale`: denominator of the derived attention factor.
        mscale_all_dim: Option<f64>,
        /// Whether the ends of the ramp are rounded outwards to whole pairs (true by default).
        truncate: bool,
    },
    /// Any of the above as a finished table: the divisor of each pair's frequency. GGUF files store Llama 3's
    /// scaling in this form.
    Factors(Vec<f32>),
}

/// A number that no frequency can be computed with.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{parameter} {rule}, but is {value}")]
pub struct InvalidRope {
    /// Parameter, by Hugging Face's name: `rope_theta`, `factor`, `beta_fast`, and so on. `rope_freqs.weight` (the tensor
    /// of GGUF) for a factor of [`RopeScaling::Factors`].
    pub parameter: &'static str,
    /// Its value.
    pub value: f64,
    /// What it must be, as a predicate: "must be a number above 1".
    pub rule: String,
}

impl RopeScaling {
    /// Checks a base `theta` and the parameters of a scaling. Sizes are not checked: whether there is a factor for each
    /// pair depends on the heads.
    ///
    /// # Errors
    /// [`InvalidRope`] for a number without meaning, or outside of what f32 can hold.
    ///
    /// ```
    /// use l1_tensor::ops::RopeScaling;
    ///
    /// let why = RopeScaling::Linear { factor: -2.0 }.check(10_000.0).unwrap_err();
    /// assert_eq!(why.parameter, "factor");
    /// assert!(RopeScaling::None.check(10_000.0).is_ok());
    /// ```
    pub fn check(&self, theta: f64) -> Result<(), InvalidRope> {
        if !(theta > 1.0 && (theta as f32).is_finite()) {
            return Err(invalid(
                "rope_theta",
                theta,
                "must be a number above 1, in the range of f32",
            ));
        }
        match *self {
            Self::None => Ok(()),
            Self::Linear { factor } => positive("factor", factor),
            Self::Factors(ref factors) => {
                let mut factors = factors.iter().map(|factor| f64::from(*factor));
                factors.try_for_each(|factor| positive("rope_freqs.weight", factor))
            }
            Self::Llama3 {
                factor,
                low_freq_factor: low,
                high_freq_factor: high,
                original_max_position,
            } => {
                positive("factor", factor)?;
                positive("low_freq_factor", low)?;
                positive("high_freq_factor", high)?;
                positive("original_max_position_embeddings", original_max_position as f64)?;
                if high <= low {
                    let rule = format!("must be above low_freq_factor, which is {low}");
                    return Err(invalid("high_freq_factor", high, &rule));
                }
                Ok(())
            }
            Self::Yarn {
                factor,
                beta_fast,
                beta_slow,
                original_max_position,
                attention_factor,
                mscale,
                mscale_all_dim,
                truncate: _,
            } => {
                positive("factor", factor)?;
                positive("beta_fast", beta_fast)?;
                positive("beta_slow", beta_slow)?;
                positive("original_max_position_embeddings", original_max_position as f64)?;
                attention_factor.map_or(Ok(()), |x| positive("attention_factor", x))?;
                mscale.map_or(Ok(()), |x| at_least_zero("mscale", x))?;
                mscale_all_dim.map_or(Ok(()), |x| at_least_zero("mscale_all_dim", x))
            }
        }
    }
}

/// Computation is in f32: what rounds to 0 or to infinity there is no factor either.
fn positive(parameter: &'static str, value: f64) -> Result<(), InvalidRope> {
    if (value as f32).is_normal() && value > 0.0 {
        return Ok(());
    }
    Err(invalid(parameter, value, "must be a number above 0, in the range of f32"))
}

fn at_least_zero(parameter: &'static str, value: f64) -> Result<(), InvalidRope> {
    if (value as f32).is_finite() && value >= 0.0 {
        return Ok(());
    }
    Err(invalid(parameter, value, "must be a number of at least 0, in the range of f32"))
}

fn invalid(parameter: &'static str, value: f64, rule: &str) -> InvalidRope {
    InvalidRope { parameter, value, rule: rule.into() }
}
