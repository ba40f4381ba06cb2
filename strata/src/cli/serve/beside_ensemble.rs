//! Flags beside `--ensemble`: which are for all specialists, which are defaults, and which the file has instead.
//!
//! A flag that the file has instead is refused wherever it is from: a value that nothing reads is a mistake of the
//! operator, also one in the environment.

use clap::Command;

use super::layers::{Layers, Source, command};
use crate::cli::error::CliError;

/// What a flag is beside `--ensemble`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Beside {
    /// It holds for all specialists, or for the server.
    All,
    /// It is the default of this field of a specialist.
    Default(&'static str),
    /// The file has this field instead.
    InFile(&'static str),
    /// It is for a server of one model.
    OneModel,
}

/// What the flag of this id is beside `--ensemble`.
pub fn beside(id: &str) -> Beside {
    match id {
        "max_num_seqs" => Beside::Default("max_num_seqs"),
        "max_num_batched_tokens" => Beside::Default("max_num_batched_tokens"),
        "max_model_len" => Beside::Default("max_model_len"),
        "model" | "which" => Beside::InFile("`model` of the file, or of a [[specialist]]"),
        "served_model_name" => Beside::InFile("`name` of the file, and of each [[specialist]]"),
        "kv_memory" => {
            Beside::InFile("`kv_memory` of the file, which `kv_share` of a [[specialist]] divides")
        }
        "memory_utilization" => Beside::InFile("`kv_memory` of the file"),
        "block_size" => Beside::InFile("`block_size` of a [[specialist]]"),
        "kv_tier_dram" | "kv_tier_disk" | "kv_tier_disk_size" | "kv_tier_redis"
        | "kv_tier_chunk" | "kv_transfer_config" | "job_history" | "enable_lora"
        | "lora_modules" | "max_lora_rank" | "max_cpu_loras" | "max_lora_wait" => Beside::OneModel,
        "policy" => Beside::InFile("`policy` of a [[specialist]]"),
        "speculative_config" => Beside::InFile("`speculative_config` of a [[specialist]]"),
        _ => Beside::All,
    }
}

/// Refuses flags that an ensemble does not take, all at once.
///
/// # Errors
/// [`CliError::Usage`], which names each flag, its source if that is not the command line, and the field of the file.
pub fn check(layers: &Layers) -> Result<(), CliError> {
    let Some((_, ensemble)) = layers.get("ensemble") else { return Ok(()) };
    // A flag that is written here needs no source.
    let from = |source: &Source| match source {
        Source::CommandLine => String::new(),
        other => format!(" ({other})"),
    };
    let command = command();
    let refused: Vec<String> = command
        .get_arguments()
        .filter_map(|arg| {
            let id = arg.get_id().as_str();
            let (_, source) = layers.get(id)?;
            let why = match beside(id) {
                Beside::InFile(field) => format!("set {field}"),
                Beside::OneModel => "it is for a server of one model".to_owned(),
                Beside::All | Beside::Default(_) => return None,
            };
            Some(format!("{}{}: {why}", flag(&command, id), from(source)))
        })
        .collect();
    match refused.is_empty() {
        true => Ok(()),
        false => {
            let (from, refused) = (from(ensemble), refused.join("; "));
            let what = format!("these flags cannot be used with --ensemble{from}: {refused}");
            Err(CliError::Usage(what))
        }
    }
}

/// A flag as it is written.
fn flag(command: &Command, id: &str) -> String {
    let arg = command.get_arguments().find(|arg| arg.get_id() == id);
    arg.and_then(|arg| arg.get_long()).map_or("MODEL".to_owned(), |long| format!("--{long}"))
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use super::*;
    use crate::cli::serve::layers::given;

    fn checked(words: &[&str], environment: &[(&str, &str)]) -> Result<(), String> {
        let given = given(&command().try_get_matches_from(words).unwrap());
        let environment = |name: &str| {
            let found = environment.iter().find(|(own, _)| *own == name);
            found.map(|(_, value)| OsString::from(value))
        };
        check(&Layers::new(given, environment).unwrap()).map_err(|why| why.to_string())
    }

    #[test]
    fn a_flag_that_the_file_has_instead_is_refused_with_its_field_wherever_it_is_from() {
        for (long, value, field) in [
            ("model", "m", "`model` of the file"),
            ("served-model-name", "m", "`name` of the file"),
            ("kv-memory", "1GiB", "`kv_memory` of the file"),
            ("memory-utilization", "0.5", "`kv_memory` of the file"),
            ("block-size", "8", "`block_size` of a [[specialist]]"),
            ("policy", "fcfs", "`policy` of a [[specialist]]"),
            (
                "speculative-config",
                r#"{"method":"suffix"}"#,
                "`speculative_config` of a [[specialist]]",
            ),
            ("kv-tier-dram", "1GiB", "a server of one model"),
            ("enable-lora", "true", "a server of one model"),
            ("lora-modules", "a=b", "a server of one model"),
            ("max-lora-rank", "8", "a server of one model"),
            ("max-cpu-loras", "8", "a server of one model"),
            ("max-lora-wait", "8", "a server of one model"),
        ] {
            let word = format!("--{long}={value}");
            let variable = format!("STRATA_{}", long.to_uppercase().replace('-', "_"));
            let on_line = checked(&["--ensemble", "demo", &word], &[]).unwrap_err();
            let from_environment =
                checked(&["--ensemble", "demo"], &[(&variable, value)]).unwrap_err();
            assert!(on_line.contains(&format!("with --ensemble: --{long}: ")), "{on_line}");
            assert!(
                from_environment.contains(&format!("--{long} ({variable})")),
                "{from_environment}"
            );
            assert!(on_line.contains(field) && from_environment.contains(field), "{on_line}");
            assert_eq!(checked(&[&word], &[(&variable, value)]), Ok(()), "without an ensemble");
        }
        let which = checked(&["m", "--ensemble", "demo"], &[]).unwrap_err();
        assert!(which.contains("MODEL: set `model`"), "{which}");
        let ensemble = checked(&["m"], &[("STRATA_ENSEMBLE", "demo")]).unwrap_err();
        assert!(ensemble.contains("with --ensemble (STRATA_ENSEMBLE): MODEL"), "{ensemble}");
        let both = checked(&["--ensemble", "demo", "--policy", "fcfs", "--block-size", "8"], &[]);
        assert_eq!(both.unwrap_err().matches("set `").count(), 2, "all at once");
    }

    #[test]
    fn other_flags_are_for_all_specialists_or_their_defaults() {
        let words =
            ["--ensemble", "demo", "--max-num-seqs", "4", "--trace", "run.jsonl", "--port", "1"];
        assert_eq!(checked(&words, &[("STRATA_MAX_MODEL_LEN", "64")]), Ok(()));
    }

    #[test]
    fn the_book_lists_each_flag_that_is_not_for_all() {
        let page = include_str!("../../../../book/src/operate/ensemble.md");
        for arg in
            command().get_arguments().filter(|arg| beside(arg.get_id().as_str()) != Beside::All)
        {
            let Some(long) = arg.get_long() else { continue };
            assert!(
                page.contains(&format!("`--{long}`")),
                "--{long} is not in operate/ensemble.md"
            );
        }
    }
}
