//! The ensemble file of `--ensemble`.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use l6_ensemble::EnsembleConfig;
use server::reload::{EnsembleSource, SourceError};

use super::flags::Flags;
use super::verify::{Findings, verify};
use crate::cli::error::CliError;
use crate::hub;

/// The ensemble of `--ensemble demo`: specialists that differ in system prompt and sampling, over the default model.
const DEMO: &str = include_str!("../../../../deploy/ensemble-demo.toml");

/// Maximum size of an ensemble file in bytes.
const MAX_BYTES: u64 = 1 << 20;

/// Reads an ensemble file; `demo` is the one that is part of the program.
///
/// # Errors
/// [`CliError::Input`] for a file that cannot be read, [`CliError::Invalid`] with all errors of one that is invalid.
pub fn read(file: &str) -> Result<EnsembleConfig, CliError> {
    load(file).map_err(|why| match why {
        SourceError::Unreadable { file: what, reason } => CliError::Input { what, reason },
        SourceError::Invalid { file, errors } => {
            let problems = errors.0.iter().map(ToString::to_string).collect();
            CliError::Invalid { what: file, problems }
        }
    })
}

/// Checks that this machine can serve a file that was read: models, classifier, API keys. Returns what is no error.
///
/// # Errors
/// [`CliError::Invalid`] with everything that is missing.
pub fn verified(
    file: &str,
    config: &EnsembleConfig,
    options: &hub::Options,
) -> Result<Findings, CliError> {
    let mut found = verify(config, options, |name| std::env::var_os(name));
    match found.problems.is_empty() {
        true => Ok(found),
        false => {
            let problems = std::mem::take(&mut found.problems);
            Err(CliError::Invalid { what: file.to_owned(), problems })
        }
    }
}

/// Reads and validates an ensemble file. Its paths are relative to its directory.
fn load(file: &str) -> Result<EnsembleConfig, SourceError> {
    let named = || file.to_owned();
    let (text, directory) = match file {
        "demo" => (DEMO.to_owned(), None),
        path => {
            let text = text_of(Path::new(path))
                .map_err(|reason| SourceError::Unreadable { file: named(), reason })?;
            (text, Path::new(path).parent().map(PathBuf::from))
        }
    };
    let config = EnsembleConfig::parse(&text);
    let mut config = config.map_err(|errors| SourceError::Invalid { file: named(), errors })?;
    if let Some(directory) = directory {
        config.set_directory(&directory);
    }
    Ok(config)
}

/// Text of a file. One that is no regular file may never end, and a running server reads it again at each reload.
fn text_of(path: &Path) -> io::Result<String> {
    let about = std::fs::metadata(path)?;
    let invalid = |what: String| Err(io::Error::new(io::ErrorKind::InvalidInput, what));
    if about.is_file() && about.len() <= MAX_BYTES {
        return std::fs::read_to_string(path);
    }
    if about.is_file() {
        return invalid(format!("it has {} bytes, and may have {MAX_BYTES}", about.len()));
    }
    invalid("it is no regular file: write the ensemble to a file".to_owned())
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
