//! A file mapped into memory, with the two hints a loader gives the operating system; or a small file, read.

use std::fs::File;
use std::io::Read;
use std::ops::Range;
use std::path::{Path, PathBuf};

use memmap2::Mmap;

use super::CheckpointError;

/// Opens a file; `None` if it is a directory, a pipe or a device. It never waits: opening a named pipe would wait for a
/// writer, so it is opened without waiting, and the kind is that of the opened file, whatever the path names by now.
pub(crate) fn open_regular(path: &Path) -> std::io::Result<Option<File>> {
    let mut options = File::options();
    options.read(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::custom_flags(&mut options, libc::O_NONBLOCK);
    let file = options.open(path)?;
    Ok(file.metadata()?.is_file().then_some(file))
}

/// A read-only mapping of a whole file.
///
/// Pages are read on first access and belong to the system's page cache: a second process, or a
/// second start, finds them there.
#[derive(Debug)]
pub(super) struct MappedFile {
    path: PathBuf,
    bytes: Bytes,
}

#[derive(Debug)]
enum Bytes {
    Mapped(Mmap),
    Read(Vec<u8>),
}

impl MappedFile {
    /// Maps the regular file at `path`.
    pub(super) fn open(path: &Path) -> Result<Self, CheckpointError> {
        let io = |reason| CheckpointError::Io { path: path.to_owned(), reason };
        let not_a_file = || CheckpointError::NotAFile { path: path.to_owned() };
        let file = open_regular(path).map_err(io)?.ok_or_else(not_a_file)?;
        // SAFETY: the map is read-only and private, and is only ever read through `&[u8]`. What
        // cannot be excluded is another process truncating or rewriting the file while we read;
        // that is the usual contract of every program that maps its weights, and the downloader
        // of this project only ever renames complete files into place.
        let map = unsafe { Mmap::map(&file) }.map_err(io)?;
        Ok(MappedFile { path: path.to_owned(), bytes: Bytes::Mapped(map) })
    }

    /// Reads the regular file at `path`, of at most `max` bytes. What another process does to the file afterwards changes
    /// nothing: a server can read files that its operators replace.
    pub(super) fn read(path: &Path, max: u64) -> Result<Self, CheckpointError> {
        let io = |reason| CheckpointError::Io { path: path.to_owned(), reason };
        let not_a_file = || CheckpointError::NotAFile { path: path.to_owned() };
        let file = open_regular(path).map_err(io)?.ok_or_else(not_a_file)?;
        let too_large = |bytes| CheckpointError::TooLarge { path: path.to_owned(), bytes, max };
        let len = file.metadata().map_err(io)?.len();
        if len > max {
            return Err(too_large(len));
        }
        let mut bytes = Vec::new();
        file.take(max.saturating_add(1)).read_to_end(&mut bytes).map_err(io)?;
        if bytes.len() as u64 > max {
            return Err(too_large(bytes.len() as u64));
        }
        Ok(MappedFile { path: path.to_owned(), bytes: Bytes::Read(bytes) })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn bytes(&self) -> &[u8] {
        match &self.bytes {
            Bytes::Mapped(map) => map,
            Bytes::Read(bytes) => bytes,
        }
    }

    /// Tells the system that `range` is no longer needed: its pages leave this process's memory.
    ///
    /// The two pages at the edges, shared with the neighbours, go as well. A reader that still needs
    /// them finds them in the page cache again, at the price of one minor fault each; keeping
    /// them would keep two pages per tensor for nothing. A hint that fails costs memory, not
    /// correctness, so failure is ignored.
    pub(super) fn release(&self, range: Range<usize>) {
        #[cfg(unix)]
        if let Bytes::Mapped(map) = &self.bytes
            && !range.is_empty()
            && range.end <= map.len()
        {
            // SAFETY: DONTNEED on a private mapping that was never written drops clean pages
            // only; the next access reads the same bytes from the file again.
            let _ = unsafe {
                map.unchecked_advise_range(
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
        if let Bytes::Mapped(map) = &self.bytes
            && !range.is_empty()
            && range.end <= map.len()
        {
            let _ = map.advise_range(memmap2::Advice::WillNeed, range.start, range.len());
        }
        #[cfg(not(unix))]
        let _ = range;
    }
}
