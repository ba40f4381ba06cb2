//! `strata router eval`.

use std::fmt::Write as _;
use std::path::PathBuf;

use l6_ensemble::router::{Evaluation, REJECT, Router, evaluate};

use super::super::out;
use super::RouterOptions;

/// Measure a router on labelled requests
///
/// Prints accuracy, coverage at 90% precision, calibration error, the confusion table, and how often each rule decided
/// and was right. Use packages that the classifier was not trained on. With --ensemble, a label is a class, and counts
/// as the specialist that serves it.
#[derive(Debug, clap::Args)]
pub struct EvalArgs {
    /// Labelled requests, JSON lines as for `strata router train`; `-` reads stdin
    #[arg(value_name = "DATA.jsonl", required = true)]
    data: Vec<PathBuf>,
    #[command(flatten)]
    router: RouterOptions,
    /// Use the classifier alone
    #[arg(long)]
    no_rules: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Runs the command.
///
/// # Errors
/// What reading reports.
pub fn run(args: &EvalArgs) -> anyhow::Result<()> {
    let router = args.router.router(!args.no_rules)?;
    let mut examples = super::read_corpus(&args.data)?;
    if args.router.ensemble.is_some() {
        examples.iter_mut().for_each(|example| example.label = lane_of(&router, &example.label));
    }
    let figures = evaluate(&router, &examples);
    if args.json {
        out::json_line(&figures)?;
    } else {
        out::text(&table(&figures))?;
    }
    Ok(())
}

/// The specialist that serves a class, by which the figures are then counted; text of other classes fits none.
fn lane_of(router: &Router, class: &str) -> String {
    let named = router.lanes().iter().find(|lane| *lane == class);
    let lane = router.config().lanes.get(class).or(named);
    lane.map_or(REJECT, String::as_str).to_owned()
}

/// The figures for a terminal.
fn table(figures: &Evaluation) -> String {
    let mut text = format!(
        "examples                     {}\n\
        accuracy                     {:.3}\n\
        balanced accuracy            {:.3}\n\
        label is first or second     {:.3}\n\
        coverage at 90% precision    {:.3}\n\
        expected calibration error   {:.3}\n\n",
        figures.examples,
        figures.accuracy,
        figures.balanced_accuracy,
        figures.top_two_accuracy,
        figures.coverage_at_90,
        figures.calibration_error,
    );
    let wide = figures.labels.iter().map(|l| l.chars().count()).max().unwrap_or(0).max(8);
    // Writing to a String cannot fail.
    let _ = write!(text, "{:wide$}", "label");
    for label in &figures.labels {
        let _ = write!(text, "{:>9}", label.chars().take(8).collect::<String>());
    }
    text.push_str("  precision  recall\n");
    let share = |x: Option<f64>| x.map_or("-".to_owned(), |x| format!("{x:.2}"));
    for (label, row) in figures.labels.iter().zip(&figures.confusion) {
        let _ = write!(text, "{label:wide$}");
        for count in row {
            let _ = write!(text, "{count:>9}");
        }
        let class = &figures.classes[label];
        let _ = writeln!(text, "{:>11}{:>8}", share(class.precision), share(class.recall));
    }
    text.push_str("\ndecided by                    examples  correct\n");
    for (reason, rule) in &figures.decided_by {
        let right = rule.correct as f64 / rule.decided.max(1) as f64;
        let _ = writeln!(text, "{reason:28}{:>10}{right:>9.2}", rule.decided);
    }
    text
}
