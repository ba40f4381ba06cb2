//! What may stand behind a flag: each with an error that says what may.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use l1_tensor::{DType, Precision, PrecisionRequest};

use crate::server::chat::reasoning::ReasoningFormat;
use crate::server::chat::tools::ToolFormat;

/// A format of tool calls; `None`: the one that the chat template shows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ToolParser(pub Option<ToolFormat>);

/// How thoughts are set apart; `None`: as the chat template shows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReasoningChoice(pub Option<ReasoningFormat>);

/// How keys and values are kept; `None`: as activations are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvDtype(pub Option<DType>);

/// The length of a sequence; `None`: what model and memory allow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModelLen(pub Option<usize>);

/// vLLM has a name for every model; here they are names of formats.
pub fn tool_parser(s: &str) -> Result<ToolParser, String> {
    Ok(ToolParser(match s {
        "auto" => None,
        "none" => Some(ToolFormat::None),
        "hermes" => Some(ToolFormat::Hermes),
        "llama3_json" | "llama4_json" => Some(ToolFormat::Llama3Json),
        _ => {
            return Err("use auto, hermes (Hermes, Qwen 2.5 and 3), llama3_json or none".into());
        }
    }))
}

/// As [`tool_parser`], for thoughts.
pub fn reasoning_parser(s: &str) -> Result<ReasoningChoice, String> {
    Ok(ReasoningChoice(match s {
        "auto" => None,
        "none" => Some(ReasoningFormat::None),
        "think" | "qwen3" | "deepseek_r1" => Some(ReasoningFormat::ThinkTags),
        _ => {
            return Err(
                "use auto, think (<think> and </think>; also qwen3, deepseek_r1) or none".into()
            );
        }
    }))
}

/// An address, or the one name that needs no resolver.
pub fn host(s: &str) -> Result<IpAddr, String> {
    match s {
        "localhost" => Ok(IpAddr::V4(Ipv4Addr::LOCALHOST)),
        _ => s.parse().map_err(|_| "use an IP address of this machine, or 0.0.0.0 for all".into()),
    }
}

/// What a header can carry.
pub fn api_key(s: &str) -> Result<String, String> {
    match s.is_empty() || !s.bytes().all(|b| b.is_ascii_graphic()) {
        true => Err("a key is visible ASCII without spaces, and not empty".into()),
        false => Ok(s.to_owned()),
    }
}

/// Seconds, or a number with `ms`, `s`, `m` or `h`.
pub fn duration(s: &str) -> Result<Duration, String> {
    let digits = s.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match s.get(digits.len()..).unwrap_or_default() {
        "" | "s" => 1.0,
        "ms" => 1e-3,
        "m" => 60.0,
        "h" => 3600.0,
        _ => return Err("use seconds, or a number with ms, s, m or h".into()),
    };
    let number: f64 = digits.trim().parse().map_err(|_| "use seconds, such as 30 or 0.5")?;
    // A year is as good as for ever, and fits every clock.
    match Duration::try_from_secs_f64(number * unit) {
        Ok(time) if time <= Duration::from_secs(366 * 24 * 3600) => Ok(time),
        _ => Err("must be from 0 to a year".into()),
    }
}

/// From 1, also as people write it.
pub fn count(s: &str) -> Result<usize, String> {
    match any_count(s)? {
        0 => Err("must be at least 1".into()),
        n => Ok(n),
    }
}

/// From 0, also as vLLM's people write it: 1k is 1,000, 1K is 1,024, 25.6k is 25,600.
pub fn any_count(s: &str) -> Result<usize, String> {
    let bad = || "use a number, such as 2048, 2k (2,000) or 2K (2,048)".to_owned();
    if let Ok(n) = s.parse::<u32>() {
        return Ok(n as usize);
    }
    let letter = s.chars().last().ok_or_else(bad)?;
    let power = "kmg".find(letter.to_ascii_lowercase()).ok_or_else(bad)? as i32 + 1;
    let number = s.strip_suffix(letter).unwrap_or_default();
    let number: f64 = match letter.is_ascii_uppercase() {
        // Parts of a power of two are seldom what was meant.
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

/// A length, or `auto` (which vLLM also writes -1).
pub fn model_len(s: &str) -> Result<ModelLen, String> {
    match s {
        "auto" | "-1" => Ok(ModelLen(None)),
        _ => count(s).map(|n| ModelLen(Some(n))),
    }
}

/// A share of the memory.
pub fn share(s: &str) -> Result<f64, String> {
    match s.parse::<f64>() {
        Ok(share) if share > 0.0 && share <= 1.0 => Ok(share),
        _ => Err("must be above 0 and at most 1, such as 0.8".into()),
    }
}

/// Tokens of a block.
pub fn power_of_two(s: &str) -> Result<usize, String> {
    match count(s)? {
        n if n.is_power_of_two() && n <= 1 << 30 => Ok(n),
        _ => Err("must be a power of two: 1, 2, 4, 8, 16, ..".into()),
    }
}

/// This program's names of precisions, and vLLM's of dtypes.
pub fn precision(s: &str) -> Result<PrecisionRequest, String> {
    match s {
        "auto" => Ok(PrecisionRequest::Auto),
        "f32" | "float32" | "float" => Ok(PrecisionRequest::Exactly(Precision::F32)),
        "bf16" | "bfloat16" => Ok(PrecisionRequest::Exactly(Precision::Bf16)),
        _ => Err("use auto, f32 (float32) or bf16 (bfloat16)".into()),
    }
}

/// This program's names, and vLLM's.
pub fn kv_dtype(s: &str) -> Result<KvDtype, String> {
    Ok(KvDtype(match s {
        "auto" => None,
        "f32" | "float32" => Some(DType::F32),
        "bf16" | "bfloat16" => Some(DType::BF16),
        "fp8" | "fp8_e4m3" => Some(DType::F8E4M3),
        _ => return Err("use auto, bf16, f32 or fp8".into()),
    }))
}

/// A flag of vLLM's for several machines or processes.
pub fn only_one(s: &str) -> Result<u8, String> {
    match s {
        "1" => Ok(1),
        _ => {
            Err("a server is one process on one device: start several, and a router before them"
                .into())
        }
    }
}

/// A flag of vLLM's for what is always so here.
pub fn always(s: &str) -> Result<bool, String> {
    match s {
        "true" | "1" => Ok(true),
        _ => {
            Err("this is always on; a request that wants no tools says so with tool_choice".into())
        }
    }
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
        assert_eq!(model_len("auto"), Ok(ModelLen(None)));
        assert_eq!(model_len("8K"), Ok(ModelLen(Some(8192))));
    }

    #[test]
    fn times_are_seconds_or_say_what_they_are() {
        for (text, ms) in [
            ("0", 0),
            ("30", 30_000),
            ("0.5", 500),
            ("250ms", 250),
            ("2 m", 120_000),
            ("1h", 3_600_000),
        ] {
            assert_eq!(duration(text), Ok(Duration::from_millis(ms)), "{text}");
        }
        for text in ["", "-1", "s", "1d", "nan", "inf", "1e30", "1h1m"] {
            assert!(duration(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_key_is_what_a_header_can_carry() {
        assert_eq!(api_key("sk-1_~!"), Ok("sk-1_~!".into()));
        for text in ["", "a b", "ü", "a\n"] {
            assert!(api_key(text).is_err(), "{text:?}");
        }
    }
}
