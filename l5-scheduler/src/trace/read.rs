//! Reading a recording.

use std::io::{self, BufRead};

use super::event::{Event, Header, VERSION};

/// Why a recording cannot be read. Lines count from 1.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The file cannot be read.
    #[error("line {line}: {source}")]
    Io {
        /// Number of the line.
        line: usize,
        /// Error of the system.
        source: io::Error,
    },
    /// The file is empty.
    #[error("the recording is empty: the recorded run ended before it wrote anything")]
    Empty,
    /// The first line is not a header.
    #[error(
        "line 1 is not the beginning of a recorded run, which is {{\"strata_trace\":1,\"policy\":..}}: {reason}"
    )]
    NotARecording {
        /// What is wrong with the line.
        reason: String,
    },
    /// The recording has another version of the format.
    #[error(
        "line 1: the recording has version {found}, but only version {VERSION} can be read: record the run again, or \
         use the version of strata that recorded it"
    )]
    Version {
        /// Version of the recording.
        found: u64,
    },
    /// The last line is incomplete: the recorded process died, or the disk was full.
    #[error(
        "line {line} breaks off: the recording was cut short; remove that line to see what is before it"
    )]
    CutShort {
        /// Number of the last line.
        line: usize,
    },
    /// A line is not an event.
    #[error("line {line} is not an event: {reason}")]
    NotAnEvent {
        /// Number of the line.
        line: usize,
        /// What is wrong with the line.
        reason: String,
    },
}

/// Reads a recording event by event.
#[derive(Debug)]
pub struct Reader<R> {
    input: R,
    line: usize,
    text: Vec<u8>,
    header: Header,
}

/// Opens a recording, and reads its header.
///
/// # Errors
/// [`TraceError`]
pub fn read<R: BufRead>(mut input: R) -> Result<Reader<R>, TraceError> {
    let mut text = Vec::new();
    let read = input.read_until(b'\n', &mut text);
    read.map_err(|source| TraceError::Io { line: 1, source })?;
    if text.is_empty() {
        return Err(TraceError::Empty);
    }
    let header = header(&text)?;
    Ok(Reader { input, line: 1, text, header })
}

fn header(line: &[u8]) -> Result<Header, TraceError> {
    #[derive(serde::Deserialize)]
    struct Version {
        strata_trace: u64,
    }
    let not = |e: serde_json::Error| {
        if e.is_eof() && !line.ends_with(b"\n") && line.starts_with(b"{\"strata_trace\"") {
            TraceError::CutShort { line: 1 }
        } else {
            TraceError::NotARecording { reason: e.to_string() }
        }
    };
    let Version { strata_trace: found } = serde_json::from_slice(line).map_err(not)?;
    if found != u64::from(VERSION) {
        return Err(TraceError::Version { found });
    }
    serde_json::from_slice(line).map_err(not)
}

impl<R: BufRead> Reader<R> {
    /// Header of the recording.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// Number of the line of the last event.
    pub fn line(&self) -> usize {
        self.line
    }

    /// Reads the next event; `None` at the end of the file.
    ///
    /// # Errors
    /// [`TraceError`]; the events before it are valid.
    pub fn next_event(&mut self) -> Result<Option<Event>, TraceError> {
        let line = self.line + 1;
        self.text.clear();
        let read = self.input.read_until(b'\n', &mut self.text);
        if read.map_err(|source| TraceError::Io { line, source })? == 0 {
            return Ok(None);
        }
        self.line = line;
        serde_json::from_slice(&self.text).map(Some).map_err(|e| {
            if e.is_eof() && !self.text.ends_with(b"\n") {
                TraceError::CutShort { line }
            } else {
                TraceError::NotAnEvent { line, reason: e.to_string() }
            }
        })
    }
}

impl<R: BufRead> Iterator for Reader<R> {
    type Item = Result<Event, TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.next_event().transpose()
    }
}
