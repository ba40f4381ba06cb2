//! Errors of the command line: one line on stderr, or one for each problem of a file, and an exit code.

use std::error::Error as _;
use std::io::{self, ErrorKind, Write, stderr};
use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue, ErrorKind as Refusal};

use crate::hub::HubError;

/// Errors of the command line itself. Those of the layers below are passed on unchanged.
#[derive(Debug, thiserror::Error)]
pub enum CliError {
    /// Arguments that are valid one by one but not together.
    #[error("{0}")]
    Usage(String),
    /// A file with problems; at least one.
    #[error("{}", several(what, problems))]
    Invalid {
        /// Name of the file.
        what: String,
        /// Each problem, with its path.
        problems: Vec<String>,
    },
    /// stdout cannot be written to.
    #[error("cannot write to stdout: {0}")]
    Stdout(io::Error),
    /// A file named on the command line, or stdin.
    #[error("cannot read {what}: {reason}")]
    Input {
        /// Name of the file, or stdin.
        what: String,
        /// Error of the system.
        reason: io::Error,
    },
    /// An output file cannot be written.
    #[error("cannot write {}: {reason}", path.display())]
    Output {
        /// The file.
        path: std::path::PathBuf,
        /// Error of the system.
        reason: io::Error,
    },
    /// A chat with a model that has no chat template.
    #[error(
        "{model} has no chat template: use a model trained for chat, or continue plain text with `strata generate` \
        without --chat"
    )]
    NoChatTemplate {
        /// Value of `--model`.
        model: String,
    },
}

/// Returns whether an error is bad usage.
fn is_usage(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(CliError::Usage(_) | CliError::Invalid { .. }))
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

/// Prints an error and returns its exit code.
pub fn report(error: &anyhow::Error) -> ExitCode {
    if let Some(CliError::Stdout(why)) = error.downcast_ref()
        && why.kind() == ErrorKind::BrokenPipe
    {
        return ExitCode::SUCCESS;
    }
    print_error(error);
    ExitCode::from(if is_usage(error) { 2 } else { 1 })
}

/// Prints one `error:` line, and one more for each of several problems of a file.
pub fn print_error(error: &anyhow::Error) {
    let text = match error.downcast_ref() {
        Some(invalid @ CliError::Invalid { .. }) => invalid.to_string(),
        _ => one_line(&message(error)),
    };
    let _ = writeln!(stderr(), "error: {text}");
}

/// The problems of a file: one in its line, several in a line each.
fn several(what: &str, problems: &[String]) -> String {
    match problems {
        [only] => format!("{what}: {}", one_line(only)),
        all => {
            let lines: Vec<String> =
                all.iter().map(|one| format!("\n  {}", one_line(one))).collect();
            format!("{what} has {} problems:{}", all.len(), lines.concat())
        }
    }
}

/// An error with its causes. Most messages contain their cause already; it is not repeated.
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

/// Prints why arguments are invalid, or the help that was requested.
///
/// clap's own message takes several lines. The first paragraph states the error, another may have a tip, and the rest
/// repeats `--help`.
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

/// The error of invalid arguments, in one line without `error:`. API keys are not shown, as the line may be logged.
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
    // That an unknown flag could be meant as a value is never of use here.
    let tips =
        paragraphs.filter(|p| p.trim_start().starts_with("tip:") && !p.contains("as a value"));
    for tip in tips.filter(|_| !suggests_another(refusal)) {
        line = format!("{line}; {}", one_line(tip));
    }
    if let Some(ContextValue::String(flag)) = refusal.get(ContextKind::InvalidArg)
        && let Some((_, why)) = NOT_NEEDED.iter().find(|(name, _)| name == flag)
    {
        line = format!("{line}: {why}");
    }
    line
}

/// Flags of vLLM for what has no limit or no choice here, and what there is in place of them.
const NOT_NEEDED: [(&str, &str); 2] = [
    ("--max-loras", "a step takes any number of adapters; --max-cpu-loras limits those in memory"),
    ("--lora-dtype", "adapters are kept in bf16"),
];

/// Whether clap takes an unknown flag for a misspelling of one that is something else: it looks at letters, and so
/// suggests `--max-lora-wait` for `--max-lora`.
fn suggests_another(refusal: &clap::Error) -> bool {
    let context = |kind| match refusal.get(kind) {
        Some(ContextValue::String(flag)) => flag.strip_prefix("--"),
        _ => None,
    };
    let flags = context(ContextKind::InvalidArg).zip(context(ContextKind::SuggestedArg));
    flags.is_some_and(|(given, suggested)| !is_misspelt(given, suggested))
}

/// Whether `given` may stand for `suggested`: it has as many words, or the same letters, or lacks the first words.
fn is_misspelt(given: &str, suggested: &str) -> bool {
    let (words, letters) =
        (|flag: &str| flag.split('-').count(), |flag: &str| flag.replace('-', ""));
    words(given) == words(suggested)
        || letters(given) == letters(suggested)
        || suggested.strip_suffix(given).is_some_and(|first| first.ends_with('-'))
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
    fn problems_of_a_file_have_a_line_each() {
        let invalid = |problems: &[&str]| {
            let problems = problems.iter().map(|one| one.to_string()).collect();
            CliError::Invalid { what: "x.toml".into(), problems }
        };
        assert_eq!(invalid(&["`a` is\n missing"]).to_string(), "x.toml: `a` is missing");
        let two = invalid(&["`a` is missing", "`b` is unknown"]);
        assert_eq!(two.to_string(), "x.toml has 2 problems:\n  `a` is missing\n  `b` is unknown");
        assert!(is_usage(&two.into()));
    }

    #[test]
    fn an_unknown_flag_is_not_taken_for_a_value() {
        let command = clap::Command::new("x").arg(clap::Arg::new("model"));
        let said = sentence(&command.try_get_matches_from(["x", "--adaptor"]).unwrap_err());
        assert_eq!(said, "unexpected argument '--adaptor' found");
    }

    #[test]
    fn a_flag_of_other_words_is_not_suggested_for_one_that_is_misspelt() {
        let flags = ["max-tokens", "temperature", "max-num-seqs", "max-cpu-loras", "max-lora-wait"];
        let command =
            clap::Command::new("x").args(flags.map(|flag| clap::Arg::new(flag).long(flag)));
        let told =
            |word: &str| sentence(&command.clone().try_get_matches_from(["x", word]).unwrap_err());
        for (given, meant) in [
            ("--max-tokns", "--max-tokens"),
            ("--maxtokens", "--max-tokens"),
            ("--temp", "--temperature"),
            ("--num-seqs", "--max-num-seqs"),
        ] {
            let said = told(given);
            assert!(said.ends_with(&format!("a similar argument exists: '{meant}'")), "{said}");
        }
        assert_eq!(told("--max-lora"), "unexpected argument '--max-lora' found");
    }

    #[test]
    fn a_flag_of_vllm_that_is_not_needed_is_refused_with_the_reason() {
        let command = clap::Command::new("x").arg(clap::Arg::new("model"));
        let said = sentence(&command.try_get_matches_from(["x", "--max-loras", "4"]).unwrap_err());
        assert!(
            said.ends_with(
                "found: a step takes any number of adapters; --max-cpu-loras limits those in memory"
            ),
            "{said}"
        );
    }

    #[test]
    fn a_cause_is_reported_once() {
        let error = anyhow::Error::new(l2_model::Error::EmptyPrompt).context("batch 8");
        assert_eq!(message(&error), format!("batch 8: {}", l2_model::Error::EmptyPrompt));
        let source = io::Error::other("no such luck");
        let error = l1_tensor::Error::Io { path: "x".into(), source };
        assert_eq!(message(&error.into()), "x: no such luck");
    }

    #[test]
    fn only_invalid_names_are_bad_usage() {
        let path = std::path::PathBuf::from("x");
        assert!(is_usage(&HubError::PathNotFound { path: path.clone() }.into()));
        assert!(is_usage(&CliError::Usage("no".into()).into()));
        assert!(!is_usage(&HubError::NotAModelFile { path }.into()));
        assert!(!is_usage(&l2_model::Error::EmptyPrompt.into()));
    }
}
