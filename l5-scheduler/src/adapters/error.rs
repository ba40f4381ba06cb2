//! Why an adapter cannot be loaded, used or unloaded, and why a request with one fails.

use std::fmt::Display;
use std::path::PathBuf;

/// Why an adapter cannot be loaded, used or unloaded.
#[derive(Debug, thiserror::Error)]
pub enum RegistryError {
    /// The name cannot be the name of an adapter.
    #[error("`{name}` cannot be the name of an adapter: {why}")]
    Name {
        /// The name, shortened.
        name: String,
        /// What is wrong with it.
        why: String,
    },
    /// An adapter of this name is loaded.
    #[error(
        "the LoRA adapter `{name}` has already been loaded: unload it first, or set `load_inplace` to replace it"
    )]
    AlreadyLoaded {
        /// Name of the adapter.
        name: String,
    },
    /// As many names are known as may be.
    #[error(
        "{max} LoRA adapters are known, which is the maximum: unload one that is not needed first"
    )]
    TooMany {
        /// Maximum number of names.
        max: usize,
    },
    /// No adapter has this name.
    #[error("the LoRA adapter `{name}` does not exist: check the name, or load it")]
    NotFound {
        /// The name.
        name: String,
    },
    /// All adapters in memory are in use, and there may be no more of them.
    #[error(
        "no room for another LoRA adapter: requests use all {max} that may be in memory; try again later, or raise \
         --max-cpu-loras"
    )]
    Full {
        /// Maximum number of adapters in memory.
        max: usize,
    },
    /// The files were not read in time. What is read later is dropped.
    #[error(
        "the LoRA adapter `{name}` was not read within {seconds} s: check the disk or the network that holds its files"
    )]
    TimedOut {
        /// Name of the adapter.
        name: String,
        /// Maximum time of a read, in seconds.
        seconds: f64,
    },
    /// The adapter cannot be read, or does not fit the model.
    #[error("the LoRA adapter `{name}` cannot be loaded: {why}")]
    Load {
        /// Name of the adapter.
        name: String,
        /// What is wrong with it.
        why: l2_model::Error,
    },
    /// The process has no memory for the adapter.
    #[error(
        "there is no memory for the LoRA adapter `{name}`: try again later, lower --max-cpu-loras, or give the server \
         more memory"
    )]
    OutOfMemory {
        /// Name of the adapter.
        name: String,
    },
    /// An evicted adapter had to be read again, and its files are not those that were loaded.
    #[error("the LoRA adapter `{name}` has changed on disk ({}): load it again, with `load_inplace`", path.display())]
    Changed {
        /// Name of the adapter.
        name: String,
        /// Its directory.
        path: PathBuf,
    },
}

/// Why a request with an adapter failed while it ran. Other requests are not affected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AdapterFailure {
    /// All logits of a row were NaN.
    #[error(
        "the LoRA adapter `{name}` made the logits non-finite: its weights are damaged or too large; use another version \
         of it, or none"
    )]
    NotFinite {
        /// Name of the adapter.
        name: String,
    },
}

impl RegistryError {
    /// Error of a load that failed with `why`.
    pub(super) fn load(name: &str, why: l2_model::Error) -> Self {
        let name = name.to_owned();
        match why.is_out_of_memory() {
            true => Self::OutOfMemory { name },
            false => Self::Load { name, why },
        }
    }

    /// Whether what was asked for is wrong, and nothing of this process or its disks.
    pub(super) fn is_of_the_call(&self) -> bool {
        match self {
            Self::Name { .. }
            | Self::AlreadyLoaded { .. }
            | Self::TooMany { .. }
            | Self::NotFound { .. }
            | Self::Load { .. } => true,
            Self::Full { .. }
            | Self::TimedOut { .. }
            | Self::OutOfMemory { .. }
            | Self::Changed { .. } => false,
        }
    }
}

impl AdapterFailure {
    pub(crate) fn not_finite(name: String) -> Self {
        Self::NotFinite { name }
    }
}

/// Maximum length of a text in a log line, in characters.
const MAX_LOG_CHARS: usize = 1024;

/// A text as a part of one log line: paths and files are a client's, and must not write lines of their own.
pub(super) fn log_text(text: &impl Display) -> String {
    let text = text.to_string();
    let mut chars = text.chars();
    let mut line = String::new();
    for c in chars.by_ref().take(MAX_LOG_CHARS) {
        match c.is_control() || matches!(c, '\u{2028}' | '\u{2029}') {
            true => line.extend(c.escape_default()),
            false => line.push(c),
        }
    }
    if chars.next().is_some() {
        line.push_str("...");
    }
    line
}

#[cfg(test)]
mod tests {
    use l2_model::adapter::AdapterError;

    use super::*;

    #[test]
    fn a_load_without_memory_is_no_error_of_the_call() {
        let memory = l1_tensor::Error::OutOfMemory { bytes: 4096 };
        let why = RegistryError::load("sql", memory.into());
        assert!(matches!(why, RegistryError::OutOfMemory { .. }), "{why}");
        assert!(!why.is_of_the_call());
        let other = RegistryError::load("sql", AdapterError::OtherModel.into());
        assert!(matches!(other, RegistryError::Load { .. }) && other.is_of_the_call(), "{other}");
    }

    #[test]
    fn a_text_in_the_log_is_one_bounded_line() {
        let forged = log_text(&"a\nINFO forged\0\u{1b}[31m\u{2028}end");
        assert_eq!(forged, "a\\nINFO forged\\u{0}\\u{1b}[31m\\u{2028}end");
        let long = log_text(&"\n".repeat(8 << 20));
        assert!(long.len() <= 10 * MAX_LOG_CHARS && long.ends_with("..."), "{}", long.len());
        assert_eq!(log_text(&"/adapters/\u{e9}"), "/adapters/\u{e9}");
    }
}
