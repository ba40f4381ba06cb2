//! Numbers of a config that no norm and no angle can be computed with: logits would be infinite or not a number.
//! A config with one is refused when it is read, by key.

use super::{ConfigError, Norm, RopeConfig};

type Result<T> = std::result::Result<T, ConfigError>;

/// Rejects a norm whose epsilon is not a number, or negative. 0 is valid: only a row of zeros needs more.
pub(super) fn check_norm(key: &str, norm: Norm) -> Result<()> {
    let (Norm::Rms { eps } | Norm::Layer { eps }) = norm;
    at_least_zero(key, f64::from(eps))
}

/// Rejects a base, a factor or a limit without meaning. `key` gives the config's key for a parameter of Hugging Face's
/// name.
pub(super) fn check_rope(rope: &RopeConfig, key: impl Fn(&str) -> String) -> Result<()> {
    let checked = rope.scaling.check(rope.theta);
    checked.map_err(|why| bad(&key(why.parameter), why.value, &why.rule))
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
