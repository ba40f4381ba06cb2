//! `strata router train`.

use std::fs;
use std::path::PathBuf;

use l6_ensemble::router::{
    BITS, Classifier, Example, ExamplePart, LinearClassifier, Part, RouteInput, TrainOptions,
    held_out, train,
};

use super::super::context::warn;
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
    let held_out = held_out(&examples, &options);
    let (rest, trained): (Vec<&Example>, Vec<&Example>) =
        examples.iter().partition(|example| held_out.contains(example.package.as_str()));
    if rest.is_empty() {
        warn(
            "warning: nothing was held out, so the temperature is 1 and scores are no probabilities: give each label \
             examples of at least three packages, or name packages with --held-out",
        );
    }
    let mut packages: Vec<&str> = held_out.into_iter().collect();
    packages.sort_unstable();
    let accuracy = match accuracy(&classifier, &rest) {
        None => "none was held out".to_owned(),
        Some(right) => format!("{right:.3}, of {} examples ({})", rest.len(), packages.join(", ")),
    };
    out::text(&format!(
        "file                  {}, {} bytes\n\
         classes               {}\n\
         trained on            {} examples\n\
         accuracy on held out  {accuracy}\n\
         temperature           {:.3}\n",
        args.out.display(),
        bytes.len(),
        classifier.classes().join(", "),
        trained.len(),
        classifier.temperature()
    ))?;
    Ok(())
}

/// Fraction of the examples whose label is the most probable class; `None` without an example.
fn accuracy(classifier: &LinearClassifier, examples: &[&Example]) -> Option<f64> {
    let right = |example: &&&Example| {
        let parts: Vec<Part<'_>> = example.parts.iter().map(ExamplePart::as_part).collect();
        let scores = classifier.scores(&RouteInput { intent: None, parts: &parts });
        let best = scores.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1));
        best.is_some_and(|(class, _)| classifier.classes().get(class) == Some(&example.label))
    };
    let count = examples.iter().filter(right).count();
    (!examples.is_empty()).then(|| count as f64 / examples.len() as f64)
}
