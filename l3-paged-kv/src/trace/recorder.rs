//! Writing a recording.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::op::{BlockObserver, BlockOp};

/// Version of the format, in the header.
pub(super) const VERSION: u32 = 1;

/// Header of a recording: the first line.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Header<'a> {
    pub strata_block_trace: u32,
    pub num_blocks: usize,
    pub block_size: usize,
    #[serde(borrow)]
    pub namespace: std::borrow::Cow<'a, str>,
}

/// Writes every op, one JSON object a line.
///
/// A full disk does not stop the run: after the first error nothing more is written, and
/// [`finish`](BlockObserver::finish) returns that error.
#[derive(Debug)]
pub struct Recorder<W> {
    writer: W,
    begun: bool,
    failure: Option<io::Error>,
}

impl Recorder<BufWriter<File>> {
    /// Records to a file, which is overwritten.
    ///
    /// # Errors
    /// If the file cannot be created.
    pub fn create(path: impl AsRef<Path>) -> io::Result<Self> {
        Ok(Self::new(BufWriter::new(File::create(path)?)))
    }
}

impl<W: Write> Recorder<W> {
    /// Records to `writer`, in many small writes, so it should be buffered.
    pub fn new(writer: W) -> Self {
        Self { writer, begun: false, failure: None }
    }

    /// Returns the writer.
    pub fn into_inner(self) -> W {
        self.writer
    }

    fn write(&mut self, op: &BlockOp<'_>) -> io::Result<()> {
        match op {
            BlockOp::PoolMade { num_blocks, block_size, namespace } if !self.begun => {
                self.begun = true;
                let header = Header {
                    strata_block_trace: VERSION,
                    num_blocks: *num_blocks,
                    block_size: *block_size,
                    namespace: namespace.as_ref().into(),
                };
                self.line(&header)
            }
            BlockOp::PoolMade { .. } => {
                Err(io::Error::other("a recording holds one pool: give each its own recorder"))
            }
            _ if !self.begun => {
                Err(io::Error::other("a recording begins where the pool is made, not later"))
            }
            op => self.line(op),
        }
    }

    fn line(&mut self, value: &impl Serialize) -> io::Result<()> {
        serde_json::to_writer(&mut self.writer, value)?;
        self.writer.write_all(b"\n")
    }
}

impl<W: Write + Send> BlockObserver for Recorder<W> {
    fn observe(&mut self, op: &BlockOp<'_>) {
        if self.failure.is_none() {
            self.failure = self.write(op).err();
        }
    }

    fn finish(&mut self) -> io::Result<()> {
        match self.failure.take() {
            Some(failure) => Err(failure),
            None => self.writer.flush(),
        }
    }
}
