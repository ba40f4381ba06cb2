//! `strata trace`: shows recorded runs.

mod mirror;
mod page;
mod recording;
mod sentence;
mod simulation;
mod template;
mod timeline;

#[cfg(test)]
mod tests;

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, BufWriter, Cursor, Read, Write};
use std::path::{Path, PathBuf};

use l3_paged_kv::trace::TraceError;

use super::error::CliError;
use page::Page;
use simulation::{SimulationError, Trace};

/// Show recorded runs
#[derive(Debug, clap::Args)]
pub struct TraceArgs {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, clap::Subcommand)]
enum What {
    View(timeline::ViewArgs),
    Chrome(timeline::ChromeArgs),
    Blocks(BlocksArgs),
}

const BLOCKS_HELP: &str = "\
To record a run:
  strata generate --trace-blocks run.jsonl \"The capital of France is\"
  strata trace blocks run.jsonl         writes run.html; open it in a browser

In the page: the left and right arrows go to the previous and next event, with shift (or page up and page down) to the
previous and next step; home and end go to the first and last event, space plays. Point at a block to see its sequences;
click to keep it selected.";

/// Make a page that replays a recording of the block pool
///
/// The page is one self-contained file: pool, free list, block tables and hashes, and a sentence for each event. FILE
/// is a recording (JSON lines, first `{"strata_block_trace":1,..}`), or a trace of the scheduler (JSON with `steps`;
/// with `free_queue_end` in its steps the free list is shown in order).
#[derive(Debug, clap::Args)]
#[command(after_help = BLOCKS_HELP)]
struct BlocksArgs {
    /// Recording; `-` for stdin
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// File for the page, `-` for stdout [default: FILE with .html, stdout for stdin]
    #[arg(long, value_name = "FILE.html")]
    out: Option<PathBuf>,
    /// Maximum number of frames; later ones are left out
    #[arg(long, value_name = "N", default_value_t = 20_000, value_parser = clap::value_parser!(u32).range(1..))]
    max_frames: u32,
}

/// Why a file makes no page.
#[derive(Debug, thiserror::Error)]
enum TraceFileError {
    #[error("{file}: {source}")]
    Recording { file: String, source: TraceError },
    #[error("{file}: {source}")]
    Simulation { file: String, source: SimulationError },
    #[error(
        "{file} is neither a block recording (JSON lines, the first begins with {{\"strata_block_trace\":1}}; `strata \
        generate --trace-blocks FILE` makes one) nor a scheduler's trace (one JSON object with `steps`): {reason}"
    )]
    Neither { file: String, reason: String },
    #[error("{0} would be overwritten by its own page: choose another file with --out")]
    SameFile(String),
}

/// Runs the command.
///
/// # Errors
/// Files that cannot be read or written, or are malformed.
pub fn run(args: &TraceArgs) -> anyhow::Result<()> {
    match &args.what {
        What::View(args) => timeline::view(args),
        What::Chrome(args) => timeline::chrome(args),
        What::Blocks(args) => blocks(args),
    }
}

fn blocks(args: &BlocksArgs) -> anyhow::Result<()> {
    let from_stdin = args.file == Path::new("-");
    let name = if from_stdin { "stdin".to_owned() } else { args.file.display().to_string() };
    let out = match &args.out {
        Some(out) => out.clone(),
        None if from_stdin => PathBuf::from("-"),
        None => args.file.with_extension("html"),
    };
    if !from_stdin && out == args.file {
        return Err(TraceFileError::SameFile(name).into());
    }
    let unreadable = |reason| CliError::Input { what: name.clone(), reason };
    let page = if from_stdin {
        load(io::stdin().lock(), &name, args.max_frames as usize)?
    } else {
        let file = File::open(&args.file).map_err(unreadable)?;
        load(BufReader::new(file), &name, args.max_frames as usize)?
    };
    if page.left_out > 0 {
        let _ = writeln!(
            io::stderr(),
            "the page shows the first {} frames; {} are left out (--max-frames)",
            page.frames.len(),
            page.left_out
        );
    }
    if out == Path::new("-") {
        let mut stdout = BufWriter::new(io::stdout().lock());
        page.write(&mut stdout).and_then(|()| stdout.flush()).map_err(CliError::Stdout)?;
        return Ok(());
    }
    // In one write, so that a browser never reads half a page.
    let mut html = Vec::new();
    page.write(&mut html)
        .and_then(|()| fs::write(&out, html))
        .map_err(|reason| CliError::Output { path: out.clone(), reason })?;
    Ok(super::out::text(&format!("{}\n", out.display()))?)
}

/// Reads either kind of file: its first line tells which it is.
fn load(mut input: impl BufRead, name: &str, most: usize) -> anyhow::Result<Page> {
    let unreadable = |reason| CliError::Input { what: name.to_owned(), reason };
    let mut first = Vec::new();
    input.read_until(b'\n', &mut first).map_err(unreadable)?;
    let title = Path::new(name).file_stem().unwrap_or_default().to_string_lossy();
    if is_recording(&first) {
        let input = Cursor::new(first).chain(input);
        return recording::page(input, &title, most)
            .map_err(|source| TraceFileError::Recording { file: name.to_owned(), source }.into());
    }
    input.read_to_end(&mut first).map_err(unreadable)?;
    let trace: Trace = serde_json::from_slice(&first)
        .map_err(|e| TraceFileError::Neither { file: name.to_owned(), reason: e.to_string() })?;
    simulation::page(&trace, &title, most)
        .map_err(|source| TraceFileError::Simulation { file: name.to_owned(), source }.into())
}

fn is_recording(first_line: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(first_line) else { return false };
    text.trim_start()
        .strip_prefix('{')
        .is_some_and(|rest| rest.trim_start().starts_with("\"strata_block_trace\""))
}
