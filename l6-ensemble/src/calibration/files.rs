//! Files of bounded size and number.

use std::io;

use serde::Serialize;

use super::{CalibrationConfig, Directory};

const PREFIX: &str = "calibration-";
const SUFFIX: &str = ".jsonl";

/// Lines in files `calibration-00000001.jsonl` and so on, of which the last one grows.
///
/// A line is never divided between two files, and no file is longer than its bound. If the process ended in the middle
/// of a line, the next line begins on a line of its own: readers meet one torn line, and lose no other.
#[derive(Debug)]
pub struct RotatingFiles<D> {
    directory: D,
    max_file_bytes: u64,
    max_files: usize,
    /// Numbers of the files, the newest last.
    numbers: Vec<u64>,
    /// Bytes in the newest file.
    bytes: u64,
    /// Whether the newest file may end within a line.
    torn: bool,
    counts: FileCounts,
}

/// Counts of what was written since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct FileCounts {
    /// Number of lines that were written.
    pub written: u64,
    /// Number of lines that were lost: longer than a file, or met by an error of the file system.
    pub lost: u64,
    /// Number of files that were deleted to make room.
    pub deleted: u64,
}

/// Lines that were not written, which [`FileCounts::lost`] counts.
#[derive(Debug, thiserror::Error)]
#[error(
    "the calibration stream lost {lines} records: {file} cannot be written ({reason}): check space and permissions"
)]
pub struct WriteError {
    /// Number of lines.
    pub lines: u64,
    /// Name of the file.
    pub file: String,
    /// Reason.
    #[source]
    pub reason: io::Error,
}

impl<D: Directory> RotatingFiles<D> {
    /// Continues the newest file of a directory. Other files in it are left alone.
    ///
    /// # Errors
    /// A directory that cannot be read.
    pub fn open(directory: D, config: &CalibrationConfig) -> io::Result<Self> {
        let files = directory.list()?;
        let mut numbered: Vec<(u64, u64)> =
            files.iter().filter_map(|(name, bytes)| Some((number(name)?, *bytes))).collect();
        numbered.sort_unstable();
        let bytes = numbered.last().map_or(0, |(_, bytes)| *bytes);
        let numbers = numbered.iter().map(|(number, _)| *number).collect();
        let (max_file_bytes, max_files) = (config.max_file_bytes, config.max_files.max(1));
        let torn = bytes > 0;
        let counts = FileCounts::default();
        Ok(Self { directory, max_file_bytes, max_files, numbers, bytes, torn, counts })
    }

    /// Writes lines, each with its line end, in as few calls as the bound of a file allows.
    ///
    /// # Errors
    /// [`WriteError`] for the first file that cannot be written. The lines that are not written are lost: keeping them
    /// would be a queue without a bound. The next call tries again.
    pub fn write(&mut self, lines: &[u8]) -> Result<(), WriteError> {
        let mut rest = lines.split_inclusive(|byte| *byte == b'\n').peekable();
        while let Some(next) = rest.peek() {
            let length = next.len() as u64;
            if length > self.max_file_bytes {
                self.counts.lost += 1;
                rest.next();
                continue;
            }
            let bytes = self.bytes + u64::from(self.torn) + length;
            if self.numbers.is_empty() || bytes > self.max_file_bytes {
                self.begin_file();
            }
            let mut batch = if self.torn { vec![b'\n'] } else { vec![] };
            let mut count = 0;
            let room = self.max_file_bytes - self.bytes;
            while let Some(line) = rest.next_if(|line| (batch.len() + line.len()) as u64 <= room) {
                batch.extend_from_slice(line);
                count += 1;
            }
            self.append(&batch, count, &mut rest)?;
        }
        Ok(())
    }

    /// Counts since the start.
    pub fn counts(&self) -> FileCounts {
        self.counts
    }

    /// The directory.
    pub fn directory(&self) -> &D {
        &self.directory
    }

    fn append<'a>(
        &mut self,
        batch: &[u8],
        count: u64,
        rest: &mut impl Iterator<Item = &'a [u8]>,
    ) -> Result<(), WriteError> {
        let file = name(self.numbers.last().copied().unwrap_or_default());
        // Also what failed may have been written in part.
        self.bytes += batch.len() as u64;
        match self.directory.append(&file, batch) {
            Ok(()) => {
                self.torn = false;
                self.counts.written += count;
                Ok(())
            }
            Err(reason) => {
                self.torn = true;
                let lines = count + rest.count() as u64;
                self.counts.lost += lines;
                Err(WriteError { lines, file, reason })
            }
        }
    }

    /// Begins the next file, and deletes the oldest ones that are too many. A file that cannot be deleted is forgotten:
    /// it does not keep the others from being deleted.
    fn begin_file(&mut self) {
        self.numbers.push(self.numbers.last().map_or(1, |newest| newest.saturating_add(1)));
        (self.bytes, self.torn) = (0, false);
        let too_many = self.numbers.len().saturating_sub(self.max_files);
        for number in self.numbers.drain(..too_many) {
            if self.directory.remove(&name(number)).is_ok() {
                self.counts.deleted += 1;
            }
        }
    }
}

/// Name of a file.
fn name(number: u64) -> String {
    format!("{PREFIX}{number:08}{SUFFIX}")
}

/// Number of a file, if the name is that of a file of the stream.
fn number(text: &str) -> Option<u64> {
    let number = text.strip_prefix(PREFIX)?.strip_suffix(SUFFIX)?.parse().ok()?;
    (name(number) == text).then_some(number)
}
