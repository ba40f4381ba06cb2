//! The timeline: one line for each request.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use serde::Serialize;

use super::client::Record;
use crate::cli::error::CliError;

/// A request. Times are seconds from the beginning of the run, durations milliseconds.
#[derive(Serialize)]
struct Line<'a> {
    index: usize,
    due: f64,
    sent: f64,
    first: Option<f64>,
    end: f64,
    ttft_ms: Option<f64>,
    e2el_ms: Option<f64>,
    /// Between its chunks.
    itl_ms: Vec<f64>,
    prompt_tokens: Option<u64>,
    cached_tokens: Option<u64>,
    output_tokens: u64,
    queue_ms: Option<f64>,
    request_id: Option<&'a str>,
    error: Option<String>,
}

/// Writes the timeline, in the order of the dataset.
///
/// # Errors
/// A file that cannot be written.
pub(super) fn write(path: &Path, records: &[Record]) -> Result<(), CliError> {
    let refused = |reason| CliError::Output { path: path.to_owned(), reason };
    let mut file = BufWriter::new(File::create(path).map_err(refused)?);
    let mut ordered: Vec<&Record> = records.iter().collect();
    ordered.sort_unstable_by_key(|record| record.index);
    for record in ordered {
        let written = serde_json::to_writer(&mut file, &line(record)).map_err(std::io::Error::from);
        written.and_then(|()| file.write_all(b"\n")).map_err(refused)?;
    }
    file.flush().map_err(refused)
}

fn line(record: &Record) -> Line<'_> {
    let latencies = record.latencies();
    Line {
        index: record.index,
        due: record.due,
        sent: record.sent,
        first: record.chunks.first().copied(),
        end: record.end,
        ttft_ms: latencies.as_ref().map(|l| l.ttft * 1e3),
        e2el_ms: latencies.as_ref().map(|l| l.e2el * 1e3),
        itl_ms: record.gaps().map(|gap| gap * 1e3).collect(),
        prompt_tokens: record.usage.map(|usage| usage.prompt_tokens),
        cached_tokens: record.cached(),
        output_tokens: record.tokens(),
        queue_ms: record.queue_ms,
        request_id: record.request_id.as_deref(),
        error: record.failure.as_ref().map(ToString::to_string),
    }
}
