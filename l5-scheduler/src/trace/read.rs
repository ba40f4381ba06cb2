//! Reading a recording.

use std::io::{self, BufRead};

use super::ensemble::{ENSEMBLE_VERSION, EngineEvent, EnsembleEvent, EnsembleHeader};
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
        "line 1: the recording has version {found}, but only versions {VERSION} and {ENSEMBLE_VERSION} can be read: \
         record the run again, or use the version of strata that recorded it"
    )]
    Version {
        /// Version of the recording.
        found: u64,
    },
    /// The recording is of an ensemble, where one of a single engine was expected.
    #[error(
        "line 1: this is the recording of an ensemble, which has several engines: read it as one"
    )]
    Ensemble,
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

/// A recording of either kind.
#[derive(Debug)]
pub enum Recorded<R> {
    /// Of one engine.
    Engine(Reader<R>),
    /// Of an ensemble.
    Ensemble(EnsembleReader<R>),
}

/// Reads a recording event by event.
#[derive(Debug)]
pub struct Reader<R> {
    lines: Lines<R>,
    header: Header,
}

/// Reads a recording of an ensemble event by event.
#[derive(Debug)]
pub struct EnsembleReader<R> {
    lines: Lines<R>,
    header: EnsembleHeader,
}

/// The lines of a recording.
#[derive(Debug)]
struct Lines<R> {
    input: R,
    line: usize,
    text: Vec<u8>,
}

/// Opens a recording of either kind, and reads its header.
///
/// # Errors
/// [`TraceError`]
pub fn open<R: BufRead>(input: R) -> Result<Recorded<R>, TraceError> {
    #[derive(serde::Deserialize)]
    struct Version {
        strata_trace: u64,
    }
    let mut lines = Lines { input, line: 0, text: Vec::new() };
    if !lines.next()? {
        return Err(TraceError::Empty);
    }
    let line = lines.text.as_slice();
    let not = |e: serde_json::Error| {
        if e.is_eof() && !line.ends_with(b"\n") && line.starts_with(b"{\"strata_trace\"") {
            TraceError::CutShort { line: 1 }
        } else {
            TraceError::NotARecording { reason: e.to_string() }
        }
    };
    let Version { strata_trace: found } = serde_json::from_slice(line).map_err(not)?;
    if found == u64::from(VERSION) {
        let header = serde_json::from_slice(line).map_err(not)?;
        Ok(Recorded::Engine(Reader { lines, header }))
    } else if found == u64::from(ENSEMBLE_VERSION) {
        let header = serde_json::from_slice(line).map_err(not)?;
        Ok(Recorded::Ensemble(EnsembleReader { lines, header }))
    } else {
        Err(TraceError::Version { found })
    }
}

/// Opens a recording of one engine, and reads its header.
///
/// # Errors
/// [`TraceError`]
pub fn read<R: BufRead>(input: R) -> Result<Reader<R>, TraceError> {
    match open(input)? {
        Recorded::Engine(reader) => Ok(reader),
        Recorded::Ensemble(_) => Err(TraceError::Ensemble),
    }
}

impl<R: BufRead> Lines<R> {
    /// Reads the next line. Returns whether there was one.
    fn next(&mut self) -> Result<bool, TraceError> {
        let line = self.line + 1;
        self.text.clear();
        let read = self.input.read_until(b'\n', &mut self.text);
        if read.map_err(|source| TraceError::Io { line, source })? == 0 {
            return Ok(false);
        }
        self.line = line;
        Ok(true)
    }

    /// Parses the line as an event, or a part of one.
    fn parse<'a, T: serde::Deserialize<'a>>(&'a self) -> Result<T, TraceError> {
        let line = self.line;
        serde_json::from_slice(&self.text).map_err(|e| {
            if e.is_eof() && !self.text.ends_with(b"\n") {
                TraceError::CutShort { line }
            } else {
                TraceError::NotAnEvent { line, reason: e.to_string() }
            }
        })
    }
}

impl<R: BufRead> Reader<R> {
    /// Header of the recording.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// Number of the line of the last event.
    pub fn line(&self) -> usize {
        self.lines.line
    }

    /// Reads the next event; `None` at the end of the file.
    ///
    /// # Errors
    /// [`TraceError`]; the events before it are valid.
    pub fn next_event(&mut self) -> Result<Option<Event>, TraceError> {
        if self.lines.next()? { self.lines.parse().map(Some) } else { Ok(None) }
    }
}

impl<R: BufRead> Iterator for Reader<R> {
    type Item = Result<Event, TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.next_event().transpose()
    }
}

/// Replica of a lane.
#[derive(Clone, Debug, PartialEq, Eq, Hash, serde::Deserialize)]
pub(super) struct EngineName {
    pub lane: String,
    pub replica: u32,
}

/// A line of a recording of an ensemble.
pub(super) enum EnsembleLine {
    /// An event of an engine.
    Engine(EngineName, Event),
    /// An engine has started.
    Started(EngineName, Header),
    /// An event of the router, or about the recording.
    Other(EnsembleEvent),
}

impl<R: BufRead> EnsembleReader<R> {
    /// Header of the recording.
    pub fn header(&self) -> &EnsembleHeader {
        &self.header
    }

    /// Reads the next line; `None` at the end of the file.
    pub(super) fn next_line(&mut self) -> Result<Option<EnsembleLine>, TraceError> {
        #[derive(serde::Deserialize)]
        struct Kind {
            event: String,
        }
        if !self.lines.next()? {
            return Ok(None);
        }
        let lines = &self.lines;
        let Kind { event: kind } = lines.parse()?;
        Ok(Some(match kind.as_str() {
            "engine" => {
                let header: EngineEvent = lines.parse()?;
                let EngineEvent { model, policy, config } = header;
                let header = Header { strata_trace: VERSION, model, policy, config };
                EnsembleLine::Started(lines.parse()?, header)
            }
            "route" | "shadow" | "dropped" => EnsembleLine::Other(lines.parse()?),
            _ => EnsembleLine::Engine(lines.parse()?, lines.parse()?),
        }))
    }
}
