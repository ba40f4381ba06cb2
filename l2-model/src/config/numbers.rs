//! Numbers of a config that no norm and no angle can be computed with: logits would be infinite or not a number.
//!
//! [`RopeTable`](l1_tensor::ops::RopeTable) has the same rules for rotary embedding, and no names of keys. They are
//! checked here too, so that a config is refused when it is read, whatever reads it, and the message names the key.

use l1_tensor::ops::RopeScaling;

use super::{ConfigError, Norm, RopeConfig};

type Result<T> = std::result::Result<T, ConfigError>;

/// Rejects a norm whose epsilon is not a number, or negative. 0 is valid: only a row of zeros needs more.
pub(super) fn check_norm(key: &str, norm: Norm) -> Result<()> {
    let (Norm::Rms { eps } | Norm::Layer { eps }) = norm;
    at_least_zero(key, f64::from(eps))
}

/// Rejects a base, a factor or a limit without meaning. `key` gives the config's key for a parameter of Hugging Face's
/// name; `rope_freqs.weight` is that of a table of factors.
pub(super) fn check_rope(rope: &RopeConfig, key: impl Fn(&str) -> String) -> Result<()> {
    if !(rope.theta > 1.0 && (rope.theta as f32).is_finite()) {
        return Err(bad(&key("rope_theta"), rope.theta, "must be a number above 1"));
    }
    let positive = |name: &str, x: f64| positive(&key(name), x);
    match rope.scaling {
        RopeScaling::None => Ok(()),
        RopeScaling::Linear { factor } => positive("factor", factor),
        RopeScaling::Factors(ref factors) => {
            let mut factors = factors.iter().map(|factor| f64::from(*factor));
            factors.try_for_each(|factor| positive("rope_freqs.weight", factor))
        }
        RopeScaling::Llama3 {
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
                let why = format!("must be above low_freq_factor, which is {low}");
                return Err(bad(&key("high_freq_factor"), high, &why));
            }
            Ok(())
        }
        RopeScaling::Yarn {
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
            for (name, x) in [("mscale", mscale), ("mscale_all_dim", mscale_all_dim)] {
                x.map_or(Ok(()), |x| at_least_zero(&key(name), x))?;
            }
            Ok(())
        }
    }
}

/// Computation is in f32: what rounds to 0 or to infinity there is no factor either.
fn positive(key: &str, x: f64) -> Result<()> {
    if (x as f32).is_normal() && x > 0.0 {
        return Ok(());
    }
    Err(bad(key, x, "must be a number above 0, in the range of f32"))
}

fn at_least_zero(key: &str, x: f64) -> Result<()> {
    if (x as f32).is_finite() && x >= 0.0 {
        return Ok(());
    }
    Err(bad(key, x, "must be a number, at least 0"))
}

fn bad(key: &str, x: f64, why: &str) -> ConfigError {
    // As a config would have it: 1e-300, and not 300 zeros.
    let plain = x == 0.0 || (1e-5..1e16).contains(&x.abs());
    let value = if plain { x.to_string() } else { format!("{x:e}") };
    ConfigError::BadValue { key: key.into(), value, why: why.into() }
}
