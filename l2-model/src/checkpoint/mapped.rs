//! A file mapped into memory, with the two hints a loader gives the operating system.

use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};

use memmap2::Mmap;

use super::CheckpointError;

/// A read-only mapping of a whole file.
///
/// Pages are read on first access and belong to the system's page cache: a second process, or a
/// second start, finds them there.
#[derive(Debug)]
pub(super) struct MappedFile {
    path: PathBuf,
    map: Mmap,
}

impl MappedFile {
    /// Maps the regular file at `path`.
    pub(super) fn open(path: &Path) -> Result<Self, CheckpointError> {
        let io = |reason| CheckpointError::Io { path: path.to_owned(), reason };
        // Checked before opening: opening a named pipe would wait for a writer for ever.
        if !std::fs::metadata(path).map_err(io)?.is_file() {
            return Err(CheckpointError::NotAFile { path: path.to_owned() });
        }
        let file = File::open(path).map_err(io)?;
        // SAFETY: the map is read-only and private, and is only ever read through `&[u8]`. What
        // cannot be excluded is another process truncating or rewriting the file while we read;
        // that is the usual contract of every program that maps its weights, and the downloader
        // of this project only ever renames complete files into place.
        let map = unsafe { Mmap::map(&file) }.map_err(io)?;
        Ok(MappedFile { path: path.to_owned(), map })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.map
    }

    /// Tells the system that `range` is no longer needed: its pages leave this process's memory.
    ///
    /// The two pages at the edges, shared with the neighbours, go as well. A reader that still needs
    /// them finds them in the page cache again, at the price of one minor fault each; keeping
    /// them would keep two pages per tensor for nothing. A hint that fails costs memory, not
    /// correctness, so failure is ignored.
    pub(super) fn release(&self, range: Range<usize>) {
        #[cfg(unix)]
        if !range.is_empty() && range.end <= self.map.len() {
            // SAFETY: DONTNEED on a private mapping that was never written drops clean pages
            // only; the next access reads the same bytes from the file again.
            let _ = unsafe {
                self.map.unchecked_advise_range(
                    memmap2::UncheckedAdvice::DontNeed,
                    range.start,
                    range.len(),
                )
            };
        }
        #[cfg(not(unix))]
        let _ = range;
    }

    /// Tells the system that `range` will be read soon, so that the disk starts now.
    pub(super) fn prefetch(&self, range: Range<usize>) {
        #[cfg(unix)]
        if !range.is_empty() && range.end <= self.map.len() {
            let _ = self.map.advise_range(memmap2::Advice::WillNeed, range.start, range.len());
        }
        #[cfg(not(unix))]
        let _ = range;
    }
}
