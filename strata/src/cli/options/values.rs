//! Parsers of values, each with an error that says what is accepted.

use std::str::FromStr;

use l1_tensor::{DType, Precision, PrecisionRequest};
use l5_scheduler::speculation::SpeculativeConfig;

/// Data type of the KV cache; `None` (`auto`): that of activations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvDtype(pub Option<DType>);

/// Maximum length of a request in tokens; `None` (`auto`): what model and memory allow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModelLen(pub Option<usize>);

impl FromStr for KvDtype {
    type Err = String;

    /// This program's names, and vLLM's.
    fn from_str(s: &str) -> Result<Self, String> {
        Ok(Self(match s {
            "auto" => None,
            "f32" | "float32" => Some(DType::F32),
            "bf16" | "bfloat16" => Some(DType::BF16),
            "fp8" | "fp8_e4m3" => Some(DType::F8E4M3),
            _ => return Err("use auto, bf16, f32 or fp8".into()),
        }))
    }
}

impl FromStr for ModelLen {
    type Err = String;

    /// A number from 2, or `auto`, which vLLM also writes -1. A prompt of one token and an output of one are the
    /// shortest request.
    fn from_str(s: &str) -> Result<Self, String> {
        match s {
            "auto" | "-1" => Ok(Self(None)),
            _ => match any_count(s)? {
                0 | 1 => {
                    Err("must be at least 2: a token of a prompt and one of the output".into())
                }
                n => Ok(Self(Some(n))),
            },
        }
    }
}

/// A number from 1, with an optional suffix as in [`any_count`].
pub fn count(s: &str) -> Result<usize, String> {
    match any_count(s)? {
        0 => Err("must be at least 1".into()),
        n => Ok(n),
    }
}

/// A number of blocks, of which one is the null block.
pub fn num_blocks(s: &str) -> Result<usize, String> {
    match any_count(s)? {
        0 | 1 => Err("must be at least 2: the null block and one for tokens".into()),
        n => Ok(n),
    }
}

/// A number from 0. Suffixes are vLLM's: 1k is 1,000, 1K is 1,024, 25.6k is 25,600.
pub fn any_count(s: &str) -> Result<usize, String> {
    let bad = || "use a number, such as 2048, 2k (2,000) or 2K (2,048)".to_owned();
    if let Ok(n) = s.parse::<u32>() {
        return Ok(n as usize);
    }
    let letter = s.chars().last().ok_or_else(bad)?;
    let power = "kmg".find(letter.to_ascii_lowercase()).ok_or_else(bad)? as i32 + 1;
    let number = s.strip_suffix(letter).unwrap_or_default();
    let number: f64 = match letter.is_ascii_uppercase() {
        // A fraction of a power of two is probably a mistake.
        true => f64::from(number.parse::<u32>().map_err(|_| bad())?),
        false => number.parse().map_err(|_| bad())?,
    };
    let base: f64 = if letter.is_ascii_uppercase() { 1024.0 } else { 1000.0 };
    let n = (number * base.powi(power)).round();
    match (0.0..=f64::from(u32::MAX)).contains(&n) {
        true => Ok(n as usize),
        false => Err(format!("must be from 0 to {}", u32::MAX)),
    }
}

/// A share above 0 and at most 1.
pub fn share(s: &str) -> Result<f64, String> {
    match s.parse::<f64>() {
        Ok(share) if share > 0.0 && share <= 1.0 => Ok(share),
        _ => Err("must be above 0 and at most 1, such as 0.8".into()),
    }
}

/// A power of two, at most 2^30.
pub fn power_of_two(s: &str) -> Result<usize, String> {
    match any_count(s) {
        // Block tables and slots are 32-bit numbers.
        Ok(n) if n.is_power_of_two() && n <= 1 << 30 => Ok(n),
        _ => Err("must be a power of two, at most 2^30: 1, 2, 4, 8, 16, ..".into()),
    }
}

/// A precision, by this program's names or by vLLM's names of dtypes.
pub fn precision(s: &str) -> Result<PrecisionRequest, String> {
    match s {
        "auto" => Ok(PrecisionRequest::Auto),
        "f32" | "float32" | "float" => Ok(PrecisionRequest::Exactly(Precision::F32)),
        "bf16" | "bfloat16" => Ok(PrecisionRequest::Exactly(Precision::Bf16)),
        _ => Err("use auto, f32 or bf16".into()),
    }
}

/// A configuration of speculation, as JSON.
pub fn speculative_config(s: &str) -> Result<SpeculativeConfig, String> {
    SpeculativeConfig::from_json(s).map_err(|why| why.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_as_people_write_them() {
        for (text, n) in [
            ("0", 0),
            ("4096", 4096),
            ("4k", 4000),
            ("4K", 4096),
            ("25.6k", 25_600),
            ("1m", 1_000_000),
            ("2M", 2 << 20),
            ("4294967295", u32::MAX as usize),
        ] {
            assert_eq!(any_count(text), Ok(n), "{text}");
        }
        for text in ["", "k", "-1", "1.5K", "1.5", "4x", "5g", "1e3", "nank", "infk", "-1k", "é"] {
            assert!(any_count(text).is_err(), "{text}");
        }
        assert!(count("0").is_err());
        assert!(num_blocks("1").is_err());
        assert_eq!(num_blocks("2"), Ok(2));
        assert_eq!("auto".parse(), Ok(ModelLen(None)));
        assert!("1".parse::<ModelLen>().is_err_and(|e| e.contains("at least 2")));
        assert_eq!("8K".parse(), Ok(ModelLen(Some(8192))));
    }
}
