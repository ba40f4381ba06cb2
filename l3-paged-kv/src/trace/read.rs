//! Reading a recording.

use std::io::{self, BufRead};

use super::op::BlockOp;
use super::recorder::{Header, VERSION};
use super::state::{Contradiction, PoolState};
use crate::BlockId;

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
    /// The first line is not a header.
    #[error(
        "line 1 is not the beginning of a block recording, which is \
         {{\"strata_block_trace\":1,\"num_blocks\":..}}: {reason}"
    )]
    NotARecording {
        /// What is wrong with the line.
        reason: String,
    },
    /// The recording has another version of the format.
    #[error(
        "line 1: this is a recording of version {found}, and version {VERSION} is understood: record the run again, or \
         use the strata that recorded it"
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
    /// A line is not an op.
    #[error("line {line} is not an op: {reason}")]
    NotAnOp {
        /// Number of the line.
        line: usize,
        /// What is wrong with the line.
        reason: String,
    },
    /// An op contradicts the ops before it.
    #[error("line {line} contradicts what is before it: {source}")]
    Contradiction {
        /// Number of the line.
        line: usize,
        /// The contradiction.
        source: Contradiction,
    },
}

/// An act with its changes, which the viewer shows as one picture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Number of the act's line.
    pub line: usize,
    /// The act.
    pub act: BlockOp<'static>,
    /// Ops that followed, up to the next act.
    pub changes: Vec<BlockOp<'static>>,
}

/// Reads a recording frame by frame, and keeps the [`PoolState`] after each.
#[derive(Debug)]
pub struct Reader<R> {
    input: R,
    line: usize,
    text: Vec<u8>,
    state: PoolState,
    /// The act that ended the frame before.
    next: Option<(usize, BlockOp<'static>)>,
}

/// Opens a recording, and reads its header.
///
/// # Errors
/// [`TraceError`]
pub fn read<R: BufRead>(input: R) -> Result<Reader<R>, TraceError> {
    Reader::new(input)
}

impl<R: BufRead> Reader<R> {
    fn new(mut input: R) -> Result<Self, TraceError> {
        let mut text = Vec::new();
        input.read_until(b'\n', &mut text).map_err(|source| TraceError::Io { line: 1, source })?;
        let header = header(&text)?;
        let (num_blocks, block_size) = (header.num_blocks, header.block_size);
        let state = PoolState::new(num_blocks, block_size, &header.namespace)
            .map_err(|source| TraceError::Contradiction { line: 1, source })?;
        let namespace = header.namespace.into_owned().into();
        let made = BlockOp::PoolMade { num_blocks, block_size, namespace };
        Ok(Self { input, line: 1, text: Vec::new(), state, next: Some((1, made)) })
    }

    /// State after the last frame that was read; before the first frame, the new pool.
    pub fn state(&self) -> &PoolState {
        &self.state
    }

    /// Reads the next frame and updates the state. `None` at the end of the file.
    ///
    /// # Errors
    /// [`TraceError`]; the frames before it are valid.
    pub fn next_frame(&mut self) -> Result<Option<Frame>, TraceError> {
        let Some((line, act)) = self.next.take() else { return Ok(None) };
        if line > 1 {
            self.apply(line, &act)?;
        }
        let mut changes = Vec::new();
        while let Some(op) = self.next_op()? {
            if op.is_act() {
                self.next = Some((self.line, op));
                break;
            }
            self.apply(self.line, &op)?;
            changes.push(op);
        }
        for block in changes.iter().filter_map(touched) {
            self.state
                .check_settled(block)
                .map_err(|source| TraceError::Contradiction { line: self.line, source })?;
        }
        Ok(Some(Frame { line, act, changes }))
    }

    fn apply(&mut self, line: usize, op: &BlockOp<'_>) -> Result<(), TraceError> {
        self.state.apply(op).map_err(|source| TraceError::Contradiction { line, source })
    }

    fn next_op(&mut self) -> Result<Option<BlockOp<'static>>, TraceError> {
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
                TraceError::NotAnOp { line, reason: e.to_string() }
            }
        })
    }
}

fn header(line: &[u8]) -> Result<Header<'_>, TraceError> {
    #[derive(serde::Deserialize)]
    struct Version {
        strata_block_trace: u64,
    }
    let not = |e: serde_json::Error| TraceError::NotARecording { reason: e.to_string() };
    let Version { strata_block_trace: found } = serde_json::from_slice(line).map_err(not)?;
    if found != u64::from(VERSION) {
        return Err(TraceError::Version { found });
    }
    serde_json::from_slice(line).map_err(not)
}

/// Block whose position in the free list or reference count a change affects.
fn touched(op: &BlockOp<'_>) -> Option<BlockId> {
    match *op {
        BlockOp::Pop { block }
        | BlockOp::PushFront { block }
        | BlockOp::PushBack { block }
        | BlockOp::Unlink { block }
        | BlockOp::RefCount { block, .. } => Some(block),
        _ => None,
    }
}
