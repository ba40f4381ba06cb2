//! Reading a recording.

use std::io::{self, BufRead};

use super::event::{Event, Header, VERSION};

/// What can be wrong with a recording. Lines count from 1.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The file does not let itself be read.
    #[error("line {line}: {source}")]
    Io {
        /// Where.
        line: usize,
        /// What the system said.
        source: io::Error,
    },
    /// There is nothing in it.
    #[error("the recording is empty: the run that should have written it never began")]
    Empty,
    /// The first line is not that of a recording.
    #[error(
        "line 1 is not the beginning of a recorded run, which is {{\"strata_trace\":1,\"policy\":..}}: {reason}"
    )]
    NotARecording {
        /// What is there instead.
        reason: String,
    },
    /// A recording of another version of the format.
    #[error(
        "line 1: this is a recording of version {found}, and version {VERSION} is understood: record the run again, or use the strata that recorded it"
    )]
    Version {
        /// The version.
        found: u64,
    },
    /// The last line breaks off: the run that was recorded died, or the disk was full.
    #[error(
        "line {line} breaks off: the recording was cut short; remove that line to see what is before it"
    )]
    CutShort {
        /// The last line.
        line: usize,
    },
    /// A line that is not an event.
    #[error("line {line} is not an event: {reason}")]
    NotAnEvent {
        /// Where.
        line: usize,
        /// Why not.
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

/// Opens a recording: its first line is read.
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
    /// What ran.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// The line of the last event.
    pub fn line(&self) -> usize {
        self.line
    }

    /// The next event. `None` at the end of the file.
    ///
    /// # Errors
    /// [`TraceError`]; what was read before it is good.
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
