//! Parsers of the server's values, each with an error that says what is accepted.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::time::Duration;

use l4_sampler::output::{ReasoningFormat, ToolFormat};
use serde::Deserialize;

/// A format of tool calls; `None`: the one that the chat template shows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ToolParser(pub Option<ToolFormat>);

/// A format of reasoning; `None`: the one that the chat template shows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReasoningChoice(pub Option<ReasoningFormat>);

/// The compiler that checks code in responses; `None`: they are not checked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CheckedBy(pub Option<PathBuf>);

/// A LoRA adapter that is loaded at the start.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LoraModule {
    /// Name of the adapter, which requests give as `model`.
    pub name: String,
    /// Directory of the adapter.
    pub path: PathBuf,
    /// Name of the model that it changes. `None`: the served one.
    #[serde(default)]
    pub base_model_name: Option<String>,
}

/// Parses an adapter, as `name=path` or as vLLM's JSON object.
pub fn lora_module(s: &str) -> Result<LoraModule, String> {
    if s.trim_start().starts_with('{') {
        return serde_json::from_str(s).map_err(|why| {
            format!("{why}: write {{\"name\": \"sql\", \"path\": \"/adapters/sql\"}}")
        });
    }
    match s.split_once('=') {
        Some((name, path)) if !name.is_empty() && !path.is_empty() => {
            let (name, path) = (name.to_owned(), PathBuf::from(path));
            Ok(LoraModule { name, path, base_model_name: None })
        }
        // clap gives the flag all words that follow, up to the next flag.
        _ => Err("write name=path, such as sql=/adapters/sql; if this is the model, write it before --lora-modules, \
                  or as --model"
            .to_owned()),
    }
}

/// Parses a format of tool calls. vLLM's names are those of models; here they are those of formats.
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

/// Parses a format of reasoning, as [`tool_parser`].
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

/// Parses an address, or `localhost`, which needs no resolver.
pub fn host(s: &str) -> Result<IpAddr, String> {
    match s {
        "localhost" => Ok(IpAddr::V4(Ipv4Addr::LOCALHOST)),
        _ => s.parse().map_err(|_| "use an IP address of this machine, or 0.0.0.0 for all".into()),
    }
}

/// Parses the address of another server, host and port.
pub fn server(s: &str) -> Result<SocketAddr, String> {
    let mut found = s.to_socket_addrs().map_err(|why| format!("{why}: write host:port"))?;
    found.next().ok_or_else(|| "this host has no address".to_owned())
}

/// Parses an API key, which must fit a header.
pub fn api_key(s: &str) -> Result<String, String> {
    match s.is_empty() || !s.bytes().all(|b| b.is_ascii_graphic()) {
        true => Err("an API key must be visible ASCII without spaces, and not empty".into()),
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
    // A year fits every clock.
    match Duration::try_from_secs_f64(number * unit) {
        Ok(time) if time <= Duration::from_secs(366 * 24 * 3600) => Ok(time),
        _ => Err("must be from 0 to a year".into()),
    }
}

/// Parses `off` or a compiler.
pub fn compiler(s: &str) -> Result<CheckedBy, String> {
    match s {
        "off" => Ok(CheckedBy(None)),
        // Another word would be looked up in PATH, and a misspelt `off` be a missing program.
        "g++" | "clang++" => Ok(CheckedBy(Some(s.into()))),
        path if path.contains('/') => Ok(CheckedBy(Some(path.into()))),
        _ => Err("use off, g++, clang++ or the path of a compiler, such as /usr/bin/g++-14".into()),
    }
}

/// Parses a share that may be none or all.
pub fn fraction(s: &str) -> Result<f64, String> {
    match s.parse() {
        Ok(share) if (0.0..=1.0).contains(&share) => Ok(share),
        _ => Err("use a number from 0 to 1, such as 0.05".into()),
    }
}

/// Parses a flag of vLLM's for several devices or processes, which must be 1.
pub fn only_one(s: &str) -> Result<u8, String> {
    match s {
        "1" => Ok(1),
        _ => Err("a server is one process on one device: start several, behind a router".into()),
    }
}

/// Parses a flag of vLLM's for something that is always on.
pub fn always(s: &str) -> Result<bool, String> {
    match s {
        "true" | "1" => Ok(true),
        _ => Err("this is always on; a request turns tools off with tool_choice".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn an_adapter_is_a_name_and_a_path_and_a_model_behind_it_is_told_its_place() {
        let module = |name: &str| {
            let (name, path) = (name.to_owned(), PathBuf::from("/a/sql"));
            Ok(LoraModule { name, path, base_model_name: None })
        };
        assert_eq!(lora_module("sql=/a/sql"), module("sql"));
        assert_eq!(lora_module(r#"{"name": "a=b", "path": "/a/sql"}"#), module("a=b"));
        for text in ["", "sql", "=/a/sql", "sql=", "./model", "org/model"] {
            let why = lora_module(text).unwrap_err();
            assert!(why.contains("name=path") && why.contains("--model"), "{text}: {why}");
        }
    }

    #[test]
    fn a_compiler_is_off_a_known_name_or_a_path() {
        assert_eq!(compiler("off"), Ok(CheckedBy(None)));
        for name in ["g++", "clang++", "/opt/gcc/bin/g++-14", "./cc"] {
            assert_eq!(compiler(name), Ok(CheckedBy(Some(name.into()))));
        }
        for name in ["", "of", "on", "true", "rustc"] {
            assert!(compiler(name).is_err(), "{name}");
        }
    }

    #[test]
    fn a_fraction_is_from_none_to_all() {
        for (text, share) in [("0", 0.0), ("0.05", 0.05), ("1", 1.0)] {
            assert_eq!(fraction(text), Ok(share));
        }
        for text in ["", "-0.1", "1.1", "nan", "inf", "5%"] {
            assert!(fraction(text).is_err(), "{text}");
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
