//! Reading a stream that may be damaged.

use std::io::{self, BufRead, Read};

use serde::Serialize;

use super::Evidence;
use crate::calibration::{CalibrationRecord, RECORD_VERSION};

/// Longest line that is read, in bytes. Longer ones are counted and skipped.
pub const MAX_LINE_BYTES: u64 = 16 << 20;

/// Counts of the lines that were read.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Lines {
    /// Records.
    pub records: u64,
    /// Lines that are no record.
    pub malformed: u64,
    /// Last lines of a stream without a line end that are no record: the writer was stopped there.
    pub torn: u64,
    /// Records of another version.
    pub other_version: u64,
    /// Records with a score that is not from 0 to 1, or an intent beyond [`super::MAX_INTENTS`].
    pub out_of_range: u64,
    /// Lines above [`MAX_LINE_BYTES`].
    pub too_long: u64,
    /// The first line that is no record: what is wrong with it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_error: Option<String>,
}

impl Lines {
    /// Number of lines that count nowhere.
    pub fn skipped(&self) -> u64 {
        self.malformed + self.torn + self.other_version + self.out_of_range + self.too_long
    }
}

impl Evidence {
    /// Counts the records of a stream. Lines that are no record are counted and skipped, empty ones are skipped.
    ///
    /// # Errors
    /// A stream that cannot be read. What was read before counts.
    pub fn read(&mut self, mut stream: impl BufRead) -> io::Result<()> {
        let mut line = vec![];
        for number in 1_u64.. {
            line.clear();
            // One byte more than a line may have, so that a line of exactly the limit is told from a longer one.
            if stream.by_ref().take(MAX_LINE_BYTES + 1).read_until(b'\n', &mut line)? == 0 {
                break;
            }
            let ended = line.last() == Some(&b'\n');
            if line.len() as u64 > MAX_LINE_BYTES {
                self.lines.too_long += 1;
                if !ended {
                    skip_line(&mut stream)?;
                }
            } else if !line.trim_ascii().is_empty() {
                self.line(&line, ended, number);
            }
        }
        Ok(())
    }

    fn line(&mut self, line: &[u8], ended: bool, number: u64) {
        match serde_json::from_slice::<CalibrationRecord>(line) {
            Ok(record) if record.version != RECORD_VERSION => self.lines.other_version += 1,
            Ok(record) if self.add(&record) => self.lines.records += 1,
            Ok(_) => self.lines.out_of_range += 1,
            Err(error) => {
                let lines = if ended { &mut self.lines.malformed } else { &mut self.lines.torn };
                *lines += 1;
                let first = &mut self.lines.first_error;
                first.get_or_insert_with(|| format!("line {number}: {error}"));
            }
        }
    }
}

/// Reads up to the end of a line, and keeps nothing.
fn skip_line(stream: &mut impl BufRead) -> io::Result<()> {
    loop {
        let buffer = stream.fill_buf()?;
        let (end, read) = match buffer.iter().position(|byte| *byte == b'\n') {
            Some(at) => (true, at + 1),
            None => (buffer.is_empty(), buffer.len()),
        };
        stream.consume(read);
        if end {
            return Ok(());
        }
    }
}
