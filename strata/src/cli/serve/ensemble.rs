//! The ensemble file of `--ensemble`.

use std::fmt::Write;
use std::path::Path;
use std::sync::Arc;

use l6_ensemble::{EnsembleConfig, RemoteConfig, SpecialistConfig};
use server::reload::{EnsembleSource, SourceError};

use super::flags::Flags;
use crate::cli::error::CliError;

/// The ensemble of `--ensemble demo`: specialists that differ in system prompt and sampling, over the default model.
const DEMO: &str = include_str!("../../../../deploy/ensemble-demo.toml");

/// Reads an ensemble file; `demo` is the one that is part of the program.
///
/// # Errors
/// [`CliError::Input`] for a file that cannot be read, [`CliError::Usage`] with all errors of one that is invalid.
pub fn read(file: &str) -> Result<EnsembleConfig, CliError> {
    load(file).map_err(|why| match why {
        SourceError::Unreadable { file: what, reason } => CliError::Input { what, reason },
        why @ SourceError::Invalid { .. } => CliError::Usage(why.to_string()),
    })
}

/// Reads and validates an ensemble file.
fn load(file: &str) -> Result<EnsembleConfig, SourceError> {
    let named = || file.to_owned();
    let text = match file {
        "demo" => DEMO.to_owned(),
        path => std::fs::read_to_string(Path::new(path))
            .map_err(|reason| SourceError::Unreadable { file: named(), reason })?,
    };
    EnsembleConfig::parse(&text).map_err(|errors| SourceError::Invalid { file: named(), errors })
}

/// The ensemble as comments, for `--print-config`.
pub fn printed(config: &EnsembleConfig) -> String {
    let lines = summary(config);
    lines.lines().fold("\n".to_owned(), |text, line| text + &format!("# {line}\n"))
}

/// The specialists of an ensemble, with the values that its file leaves out.
pub fn summary(config: &EnsembleConfig) -> String {
    let mut text = String::new();
    let fallback = config.fallback.as_deref().unwrap_or("none: such requests are rejected");
    let _ = writeln!(text, "ensemble {}: {} specialists", config.name, config.specialists.len());
    let _ = writeln!(text, "KV memory {}", config.kv_memory.bytes());
    let _ = writeln!(text, "requests that fit no class: {fallback}");
    for specialist in &config.specialists {
        let SpecialistConfig { name, model, replicas, block_size, policy, .. } = specialist;
        let memory = specialist.kv_memory(config.kv_memory).bytes();
        let _ = writeln!(text, "\n{name}");
        let mut row = |key: &str, value: &str| {
            if !value.is_empty() {
                let _ = writeln!(text, "  {key:<10} {value}");
            }
        };
        row("model", model);
        row("about", &specialist.description);
        let engines = if *replicas == 1 { "engine" } else { "engines" };
        if *replicas > 0 {
            let what =
                format!("{replicas} {engines} with {memory} in blocks of {block_size} tokens");
            row("KV", &what);
        }
        for remote in &specialist.remotes {
            let RemoteConfig { url, api, model, max_num_seqs, .. } = remote;
            let api = api.as_str();
            row("remote", &format!("{model} at {url} ({api}), {max_num_seqs} requests at once"));
        }
        row("policy", &policy.to_string());
        row("classes", &specialist.classes.join(" "));
        row("intents", &specialist.intents.join(" "));
        row("fallback", specialist.fallback.as_deref().unwrap_or_default());
        row("sampling", specialist.decoding_policy.map_or("", |policy| policy.as_str()));
    }
    text
}

impl Flags {
    /// The ensemble of `--ensemble`, if it was given.
    ///
    /// # Errors
    /// As [`read`].
    pub fn ensemble(&self) -> Result<Option<EnsembleConfig>, CliError> {
        self.ensemble.as_deref().map(read).transpose()
    }

    /// Where a running server reads that ensemble again.
    pub fn ensemble_source(&self) -> Option<EnsembleSource> {
        let file = self.ensemble.clone()?;
        Some(Arc::new(move || load(&file)))
    }
}
