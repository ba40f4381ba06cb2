//! `strata router train`.

use std::fs;
use std::path::PathBuf;

use l6_ensemble::router::{BITS, TrainOptions, train};

use super::super::error::CliError;
use super::super::out;

/// Train a classifier on labelled requests
///
/// A line of DATA.jsonl is {"label", "package", "parts": [{"kind", "text", "name"?}, ..]}; kinds are system, user,
/// assistant, tool and snippet. The label `reject` is text that no lane serves. The same data and options give the same
/// file.
#[derive(Debug, clap::Args)]
pub struct TrainArgs {
    /// Labelled requests, JSON lines; `-` reads stdin
    #[arg(value_name = "DATA.jsonl", required = true)]
    data: Vec<PathBuf>,
    /// File for the classifier
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    /// Binary logarithm of the number of buckets; the file has 2^bits bytes for each class
    #[arg(long, value_name = "N", default_value_t = TrainOptions::default().bits,
        value_parser = clap::value_parser!(u32).range(*BITS.start() as i64..=*BITS.end() as i64))]
    bits: u32,
    /// Passes over the data
    #[arg(long, value_name = "N", default_value_t = TrainOptions::default().epochs,
        value_parser = clap::value_parser!(u32).range(1..=1000))]
    epochs: u32,
    /// Seed of the order of the examples, and of the packages that are held out
    #[arg(long, value_name = "N", default_value_t = TrainOptions::default().seed)]
    seed: u64,
    /// Packages that calibrate the probabilities instead of being trained on [default: one of each label, drawn]
    #[arg(long, value_name = "PACKAGE", num_args = 1..)]
    held_out: Vec<String>,
}

/// Runs the command.
///
/// # Errors
/// What reading, training and writing report.
pub fn run(args: &TrainArgs) -> anyhow::Result<()> {
    let examples = super::read_corpus(&args.data)?;
    let options = TrainOptions {
        bits: args.bits,
        epochs: args.epochs,
        seed: args.seed,
        held_out: args.held_out.clone(),
        ..TrainOptions::default()
    };
    let classifier = train(&examples, &options)?;
    let bytes = classifier.to_bytes();
    fs::write(&args.out, &bytes)
        .map_err(|reason| CliError::Output { path: args.out.clone(), reason })?;
    out::text(&format!(
        "{}: {} bytes, from {} examples, temperature {:.3}\n",
        args.out.display(),
        bytes.len(),
        examples.len(),
        classifier.temperature()
    ))?;
    Ok(())
}
