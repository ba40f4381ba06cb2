//! What goes wrong on the command line, and how it is told: one line and an exit code.

use std::error::Error as _;
use std::io::{self, ErrorKind, Write, stderr};
use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue, ErrorKind as Refusal};

use crate::hub::HubError;

/// Failures that belong to the command line itself. Those of the floors below are passed on as they are.
#[derive(Debug, thiserror::Error)]
pub enum CliError {
    /// Arguments that parse one by one and make no sense together.
    #[error("{0}")]
    Usage(String),
    /// stdout does not take the answer.
    #[error("cannot write to stdout: {0}")]
    Stdout(io::Error),
    /// A file named on the command line, or stdin.
    #[error("cannot read {what}: {reason}")]
    Input {
        /// Its name.
        what: String,
        /// What the system said.
        reason: io::Error,
    },
    /// A file that was asked for cannot be written.
    #[error("cannot write {}: {reason}", path.display())]
    Output {
        /// The file.
        path: std::path::PathBuf,
        /// What the system said.
        reason: io::Error,
    },
    /// A chat with a model that was never taught a chat format.
    #[error(
        "{model} has no chat template: use a model trained for chat, or continue plain text with `strata generate` without --chat"
    )]
    NoChatTemplate {
        /// What was given as `--model`.
        model: String,
    },
}

/// Bad usage, by this program's word or that of the hub's grammar.
fn is_usage(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(CliError::Usage(_)))
        || matches!(error.downcast_ref(), Some(l4_sampler::Error::Params(_)))
        || matches!(
            error.downcast_ref(),
            Some(
                HubError::InvalidHubId { .. }
                    | HubError::UnknownModel { .. }
                    | HubError::PathNotFound { .. }
            )
        )
}

/// Tells what went wrong and gives the exit code for it.
pub fn report(error: &anyhow::Error) -> ExitCode {
    if let Some(CliError::Stdout(why)) = error.downcast_ref()
        && why.kind() == ErrorKind::BrokenPipe
    {
        return ExitCode::SUCCESS;
    }
    print_error(error);
    ExitCode::from(if is_usage(error) { 2 } else { 1 })
}

/// Prints one `error:` line.
pub fn print_error(error: &anyhow::Error) {
    let _ = writeln!(stderr(), "error: {}", one_line(&message(error)));
}

/// An error with its causes. Most messages of the floors below tell their cause themselves; it is not said twice.
fn message(error: &anyhow::Error) -> String {
    let mut whole = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if whole.is_empty() {
            whole = cause;
        } else if !whole.contains(&cause) {
            whole = format!("{whole}: {cause}");
        }
    }
    whole
}

/// Tells why arguments were refused, or prints the help that was asked for.
///
/// clap's own message takes several lines. The first paragraph says what is wrong, one may hold a tip, and the rest
/// is what `--help` shows in full.
pub fn refuse(refusal: &clap::Error) -> ExitCode {
    match refusal.kind() {
        Refusal::DisplayHelp | Refusal::DisplayVersion => {
            // The reader of a help text may close the pipe early; that is no failure.
            let _ = refusal.print();
            ExitCode::SUCCESS
        }
        Refusal::DisplayHelpOnMissingArgumentOrSubcommand => {
            let _ = refusal.print();
            ExitCode::from(2)
        }
        _ => {
            let line = sentence(refusal);
            let _ = writeln!(stderr(), "error: {line}; see --help");
            ExitCode::from(2)
        }
    }
}

/// What is wrong with arguments, in one line without `error:`. A key of clients is not shown: this goes to journals.
pub fn sentence(refusal: &clap::Error) -> String {
    if let Some(ContextValue::String(named)) = refusal.get(ContextKind::InvalidArg)
        && named.starts_with("--api-key ")
        && let Some(why) = refusal.source()
    {
        return format!("invalid value for '{named}': {why}");
    }
    let text = refusal.render().to_string();
    let mut paragraphs = text.split("\n\n");
    let line = one_line(paragraphs.next().unwrap_or_default());
    let mut line = line.strip_prefix("error: ").unwrap_or(&line).to_owned();
    for tip in paragraphs.filter(|p| p.trim_start().starts_with("tip:")) {
        line = format!("{line}; {}", one_line(tip));
    }
    line
}

fn one_line(text: &str) -> String {
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    lines.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_of_several_lines_becomes_one() {
        assert_eq!(one_line("a b:\n  - c\n\n  - d\n"), "a b: - c - d");
    }

    #[test]
    fn a_cause_is_told_once() {
        let error = anyhow::Error::new(l2_model::Error::EmptyPrompt).context("batch 8");
        assert_eq!(message(&error), format!("batch 8: {}", l2_model::Error::EmptyPrompt));
        let source = io::Error::other("no such luck");
        let error = l1_tensor::Error::Io { path: "x".into(), source };
        assert_eq!(message(&error.into()), "x: no such luck");
    }

    #[test]
    fn only_names_that_cannot_be_meant_are_bad_usage() {
        let path = std::path::PathBuf::from("x");
        assert!(is_usage(&HubError::PathNotFound { path: path.clone() }.into()));
        assert!(is_usage(&CliError::Usage("no".into()).into()));
        assert!(!is_usage(&HubError::NotAModelFile { path }.into()));
        assert!(!is_usage(&l2_model::Error::EmptyPrompt.into()));
    }
}
