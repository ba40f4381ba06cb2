//! `strata router`: trains, measures, explains and tunes the router of an ensemble.

mod eval;
mod explain;
mod train;

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use l6_ensemble::router::{
    Classifier, ClassifierSource, Example, REJECT, Router, RouterConfig, read_examples,
};

use super::error::CliError;
use super::router_tune;
use super::serve::ensemble;

/// Bytes of a configuration or a request that are read at most.
const MAX_TEXT: u64 = 4 << 20;

/// Lanes of the default ensemble.
const LANES: &str = "template,stl,algo,memory,concurrency,systems,build,debug";

/// Train, measure, explain and tune the router of an ensemble
#[derive(Debug, clap::Args)]
pub struct RouterArgs {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, clap::Subcommand)]
enum What {
    Train(train::TrainArgs),
    Eval(eval::EvalArgs),
    Explain(explain::ExplainArgs),
    Tune(router_tune::TuneArgs),
}

/// Runs the command.
///
/// # Errors
/// What reading, training and writing report.
pub fn run(args: &RouterArgs) -> anyhow::Result<()> {
    match &args.what {
        What::Train(args) => train::run(args),
        What::Eval(args) => eval::run(args),
        What::Explain(args) => explain::run(args),
        What::Tune(args) => router_tune::run(args),
    }
}

/// Options that make a router.
#[derive(Debug, clap::Args)]
struct RouterOptions {
    /// Classifier: `builtin`, `off`, or a file that `strata router train` made
    #[arg(long, value_name = "FILE")]
    classifier: Option<String>,
    /// Router's configuration, TOML
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Router of an ensemble file, with its specialists as lanes and its fallback; demo for the ensemble of this
    /// program
    #[arg(long, value_name = "FILE", conflicts_with_all = ["config", "lanes"])]
    ensemble: Option<String>,
    /// Names of the lanes, without --ensemble
    #[arg(long, value_name = "NAMES", value_delimiter = ',', default_value = LANES)]
    lanes: Vec<String>,
}

impl RouterOptions {
    fn router(&self, rules: bool) -> anyhow::Result<Router> {
        let ensemble = self.ensemble.as_deref().map(ensemble::read).transpose()?;
        let lanes = match &ensemble {
            Some(ensemble) => ensemble.specialists.iter().map(|own| own.name.clone()).collect(),
            None => self.lanes.clone(),
        };
        let mut config = match (ensemble, &self.config) {
            (Some(ensemble), _) => ensemble.router,
            (None, None) => RouterConfig::default(),
            (None, Some(path)) => {
                let text = read_text(path)?;
                toml::from_str(&text).with_context(|| path.display().to_string())?
            }
        };
        if let Some(classifier) = &self.classifier {
            config.classifier = ClassifierSource::from(classifier.clone());
        }
        if !rules {
            config.disable_rules();
        }
        let classifier = config.classifier.load()?.map(|c| Box::new(c) as Box<dyn Classifier>);
        if let Some(lane) = lanes.iter().find(|lane| lane.is_empty() || *lane == REJECT) {
            return Err(CliError::Usage(format!("--lanes: {lane:?} cannot be a lane")).into());
        }
        Ok(Router::new(config, classifier, lanes)?)
    }
}

impl RouterOptions {
    /// Fallback of the ensemble, for requests that the router assigns to no lane.
    fn fallback(&self) -> anyhow::Result<Option<String>> {
        let ensemble = self.ensemble.as_deref().map(ensemble::read).transpose()?;
        Ok(ensemble.and_then(|ensemble| ensemble.fallback))
    }
}

/// Opens a file, or stdin for `-`.
fn open(path: &Path) -> Result<Box<dyn BufRead>, CliError> {
    if path == Path::new("-") {
        return Ok(Box::new(BufReader::new(io::stdin())));
    }
    match File::open(path) {
        Ok(file) => Ok(Box::new(BufReader::new(file))),
        Err(reason) => Err(CliError::Input { what: path.display().to_string(), reason }),
    }
}

/// Reads a text of at most [`MAX_TEXT`] bytes.
fn read_text(path: &Path) -> anyhow::Result<String> {
    let fail = |reason| CliError::Input { what: path.display().to_string(), reason };
    let mut bytes = Vec::new();
    open(path)?.take(MAX_TEXT + 1).read_to_end(&mut bytes).map_err(fail)?;
    if bytes.len() as u64 > MAX_TEXT {
        let reason = io::Error::other(format!("it is longer than {MAX_TEXT} bytes"));
        return Err(fail(reason).into());
    }
    let text = String::from_utf8(bytes);
    text.map_err(|e| fail(io::Error::new(io::ErrorKind::InvalidData, e)).into())
}

/// Reads corpora, which are not empty together.
fn read_corpus(paths: &[PathBuf]) -> anyhow::Result<Vec<Example>> {
    let mut examples = Vec::new();
    for path in paths {
        examples.extend(read_examples(open(path)?).with_context(|| path.display().to_string())?);
    }
    anyhow::ensure!(!examples.is_empty(), "the corpus is empty: it needs one example a line");
    Ok(examples)
}
