//! `strata router tune`: thresholds from a calibration stream.

mod plot;
mod text;

use std::fs::{self, File};
use std::io::{self, BufReader, stdin};
use std::path::{Path, PathBuf};

use anyhow::bail;
use clap::value_parser;
use l6_ensemble::tune::{Evidence, TuneOptions};

use super::error::CliError;
use super::out;

const TUNE_HELP: &str = "\
Examples:
  strata router tune calibration/                     reads every .jsonl file of the directory
  strata router tune monday.jsonl tuesday.jsonl --out report.svg
  strata router tune calibration/ --json | jq .router.min_score

A request with a shadow is a routing error if the shadow alone is right: its code compiles, or its tests pass, and the
primary's do not. The output is TOML for an ensemble file; comments say what each value follows from. Nothing is
proposed without enough judged requests. The server reads thresholds from its configuration only: nothing changes by
itself.";

/// Propose thresholds of the router from calibration streams
#[derive(Debug, clap::Args)]
#[command(after_help = TUNE_HELP)]
pub struct TuneArgs {
    /// Calibration streams: files, directories of .jsonl files, or `-` for stdin
    #[arg(value_name = "STREAM", required = true)]
    streams: Vec<PathBuf>,
    /// File for the curves of precision over coverage and over score, SVG
    #[arg(long, value_name = "REPORT.svg")]
    out: Option<PathBuf>,
    /// Print one JSON object, with the curves
    #[arg(long)]
    json: bool,
    /// Maximum fraction of routing errors among requests without a shadow
    #[arg(long, value_name = "FRACTION", value_parser = fraction)]
    #[arg(default_value_t = TuneOptions::default().max_error)]
    max_error: f64,
    /// Maximum fraction of requests that a spill turns from right to wrong, on balance
    #[arg(long, value_name = "FRACTION", value_parser = fraction)]
    #[arg(default_value_t = TuneOptions::default().max_loss)]
    max_loss: f64,
    /// Minimum fraction of the classifier's routes that are no routing errors
    #[arg(long, value_name = "FRACTION", value_parser = fraction)]
    #[arg(default_value_t = TuneOptions::default().min_precision)]
    min_precision: f64,
    /// Minimum number of judged requests for a proposal
    #[arg(long, value_name = "N", value_parser = value_parser!(u64).range(1..))]
    #[arg(default_value_t = TuneOptions::default().min_samples)]
    min_samples: u64,
}

fn fraction(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(fraction) if (0.0..=1.0).contains(&fraction) => Ok(fraction),
        _ => Err("use a fraction from 0 to 1, such as 0.02".into()),
    }
}

/// Runs the command.
///
/// # Errors
/// A stream that cannot be read or has no record, and output that cannot be written.
pub fn run(args: &TuneArgs) -> anyhow::Result<()> {
    let mut evidence = Evidence::default();
    let mut files = 0;
    for stream in &args.streams {
        files += read(stream, &mut evidence)
            .map_err(|reason| CliError::Input { what: stream.display().to_string(), reason })?;
    }
    let report = evidence.propose(&TuneOptions {
        max_error: args.max_error,
        max_loss: args.max_loss,
        min_precision: args.min_precision,
        min_samples: args.min_samples,
        ..TuneOptions::default()
    });
    if report.lines.records == 0 {
        let first = report.lines.first_error.as_deref().unwrap_or("the files are empty");
        let skipped = report.lines.skipped();
        bail!(
            "the streams hold no calibration record (lines skipped: {skipped}; {first}): name the files of a \
             server's calibration directory"
        );
    }
    if let Some(path) = &args.out {
        plot::write(path, &report)?;
    }
    if args.json {
        Ok(out::json_line(&report)?)
    } else {
        Ok(out::text(&text::toml(&report, files))?)
    }
}

/// Reads a stream, and returns the number of files that it has.
fn read(stream: &Path, evidence: &mut Evidence) -> io::Result<usize> {
    if stream == Path::new("-") {
        evidence.read(stdin().lock())?;
        return Ok(1);
    }
    let mut files = vec![];
    if stream.is_dir() {
        for entry in fs::read_dir(stream)? {
            let path = entry?.path();
            if path.extension().is_some_and(|extension| extension == "jsonl") && path.is_file() {
                files.push(path);
            }
        }
        files.sort();
    } else {
        files.push(stream.to_owned());
    }
    for file in &files {
        evidence.read(BufReader::new(File::open(file)?))?;
    }
    Ok(files.len())
}
