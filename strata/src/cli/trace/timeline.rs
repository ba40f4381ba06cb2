//! `strata trace view` and `strata trace chrome`: a recorded run as a page, as twenty numbers, or for Perfetto.

mod ensemble;
mod page;

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};

use l5_scheduler::trace::{self, EnsembleRun, Recorded, Run, Summary, TraceError};

use super::super::error::CliError;
use super::super::out;

const VIEW_HELP: &str = "\
To record a run:
  strata generate --prompts prompts.jsonl --trace run.jsonl
  strata trace view run.jsonl             writes run.html; open it in a browser
  strata trace view run.jsonl --summary   prints steps, throughput, latencies and where the time went

A recording of an ensemble (strata serve --ensemble FILE.toml --trace run.jsonl) becomes a page with a group for each
engine, in which a request is drawn from the router to its last step. There, left and right arrow go from request to
request in the order of their arrival, and plus, minus and 0 zoom.

In the page of one engine: left and right arrow go from step to step, up and down from request to request, plus and minus zoom,
0 shows all, p goes to the next preemption, t changes between time and steps. Drag to pan, ctrl and wheel to zoom.";

/// Make a page of a recorded run: its steps, requests, queue, memory and times
///
/// The page is one self-contained file. FILE is a recording of `--trace` (JSON lines, first `{"strata_trace":1,..}`, or
/// `{"strata_trace":2,..}` of an ensemble).
#[derive(Debug, clap::Args)]
#[command(after_help = VIEW_HELP)]
pub struct ViewArgs {
    /// Recording; `-` for stdin
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// File for the page, `-` for stdout [default: FILE with .html, stdout for stdin]
    #[arg(long, value_name = "FILE.html", conflicts_with = "summary")]
    out: Option<PathBuf>,
    /// Print a summary to stdout instead of making a page
    #[arg(long)]
    summary: bool,
    /// Maximum number of steps; later ones are left out
    #[arg(long, value_name = "N", default_value_t = 200_000, value_parser = clap::value_parser!(u32).range(1..))]
    max_steps: u32,
}

const CHROME_HELP: &str = "\
Open the file at ui.perfetto.dev, or in Chrome at chrome://tracing. Steps are slices with their phases inside, requests
are threads, and queue, KV blocks and tokens are counters. Of an ensemble, the router and each engine are processes, and
arrows go from a request at the router to its engine.";

/// Convert a recorded run to Chrome's trace events, for Perfetto and chrome://tracing
#[derive(Debug, clap::Args)]
#[command(after_help = CHROME_HELP)]
pub struct ChromeArgs {
    /// Recording; `-` for stdin
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// File for the events, `-` for stdout [default: FILE with .chrome.json, stdout for stdin]
    #[arg(long, value_name = "FILE.json")]
    out: Option<PathBuf>,
}

/// Why a file cannot be shown.
#[derive(Debug, thiserror::Error)]
enum RunFileError {
    #[error("{file}: {source} (`strata generate --prompts .. --trace FILE` records a run)")]
    Recording { file: String, source: TraceError },
    #[error("{0} would be overwritten by its own output: choose another file with --out")]
    SameFile(String),
}

/// Runs `strata trace view`.
///
/// # Errors
/// Files that cannot be read or written, or are malformed.
pub fn view(args: &ViewArgs) -> anyhow::Result<()> {
    let input = Input::new(&args.file);
    if args.summary {
        return Ok(out::text(&input.run(usize::MAX)?.summary())?);
    }
    let target = input.target(args.out.as_deref(), "html")?;
    let run = input.run(args.max_steps as usize)?;
    let (shown, left_out) = run.steps();
    if left_out > 0 {
        let text = "steps; later ones are left out (--max-steps)";
        let _ = writeln!(
            io::stderr(),
            "the page shows the first {shown} of {} {text}",
            shown + left_out
        );
    }
    let title = input.title();
    target.write(|out| match &run {
        Recording::Engine(run) => page::write(run, &title, out),
        Recording::Ensemble(run) => ensemble::write(run, &title, out),
    })
}

/// Runs `strata trace chrome`.
///
/// # Errors
/// As [`view`].
pub fn chrome(args: &ChromeArgs) -> anyhow::Result<()> {
    let input = Input::new(&args.file);
    let target = input.target(args.out.as_deref(), "chrome.json")?;
    let run = input.run(usize::MAX)?;
    target.write(|out| match &run {
        Recording::Engine(run) => trace::write_chrome(run, out),
        Recording::Ensemble(run) => trace::write_ensemble_chrome(run, out),
    })
}

/// A recorded run of either kind.
enum Recording {
    Engine(Run),
    Ensemble(EnsembleRun),
}

impl Recording {
    /// Numbers of steps that were read, and that were left out.
    fn steps(&self) -> (usize, usize) {
        match self {
            Self::Engine(run) => (run.steps.len(), run.left_out),
            Self::Ensemble(run) => {
                let shown = run.engines.iter().map(|engine| engine.run.steps.len()).sum();
                (shown, run.left_out)
            }
        }
    }

    /// The run in a few numbers; of an ensemble that of each engine, behind the ways of requests.
    fn summary(&self) -> String {
        match self {
            Self::Engine(run) => Summary::of(run).to_string(),
            Self::Ensemble(run) => ensemble::summary(run),
        }
    }
}

/// What is read.
struct Input<'a> {
    path: &'a Path,
    name: String,
}

impl<'a> Input<'a> {
    fn new(path: &'a Path) -> Self {
        let stdin = path == Path::new("-");
        let name = if stdin { "stdin".to_owned() } else { path.display().to_string() };
        Self { path, name }
    }

    fn is_stdin(&self) -> bool {
        self.path == Path::new("-")
    }

    fn title(&self) -> String {
        Path::new(&self.name).file_stem().unwrap_or_default().to_string_lossy().into_owned()
    }

    fn run(&self, most: usize) -> anyhow::Result<Recording> {
        if self.is_stdin() {
            return self.read(io::stdin().lock(), most);
        }
        let unreadable = |reason| CliError::Input { what: self.name.clone(), reason };
        self.read(BufReader::new(File::open(self.path).map_err(unreadable)?), most)
    }

    fn read(&self, input: impl BufRead, most: usize) -> anyhow::Result<Recording> {
        let run = trace::open(input).and_then(|recorded| match recorded {
            Recorded::Engine(reader) => Run::read(reader, most).map(Recording::Engine),
            Recorded::Ensemble(reader) => EnsembleRun::read(reader, most).map(Recording::Ensemble),
        });
        run.map_err(|source| RunFileError::Recording { file: self.name.clone(), source }.into())
    }

    /// Destination of the output. Determined before the recording is read, so that an error is reported at once.
    fn target(&self, given: Option<&Path>, extension: &str) -> Result<Target, RunFileError> {
        let path = match given {
            Some(path) => path.to_owned(),
            None if self.is_stdin() => PathBuf::from("-"),
            None => self.path.with_extension(extension),
        };
        if !self.is_stdin() && path == self.path {
            return Err(RunFileError::SameFile(self.name.clone()));
        }
        Ok(Target(path))
    }
}

/// What is written.
struct Target(PathBuf);

impl Target {
    fn write(&self, write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> anyhow::Result<()> {
        if self.0 == Path::new("-") {
            let mut stdout = BufWriter::new(io::stdout().lock());
            write(&mut stdout).and_then(|()| stdout.flush()).map_err(CliError::Stdout)?;
            return Ok(());
        }
        // In one go, so that a browser which looks meanwhile never sees half a page.
        let mut text = Vec::new();
        write(&mut text)
            .and_then(|()| fs::write(&self.0, text))
            .map_err(|reason| CliError::Output { path: self.0.clone(), reason })?;
        Ok(out::text(&format!("{}\n", self.0.display()))?)
    }
}
