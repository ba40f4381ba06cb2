//! Reading forward through untrusted bytes.

use std::ops::Range;

use super::GgufError;

/// A range of the file, by position.
#[derive(Clone, Copy, Debug)]
pub(super) struct Span {
    start: usize,
    len: usize,
}

impl Span {
    /// Bytes of this span, in the file that it was read from.
    pub(super) fn of(self, file: &[u8]) -> &[u8] {
        file.get(self.range()).unwrap_or_default()
    }

    pub(super) fn range(self) -> Range<usize> {
        self.start..self.start + self.len
    }

    /// `None` unless all of `start..start + len` is inside a file of `file_len` bytes.
    pub(super) fn within(start: usize, len: usize, file_len: usize) -> Option<Span> {
        let end = start.checked_add(len)?;
        (end <= file_len).then_some(Span { start, len })
    }
}

/// A position in a file; every read checks the rest of the file first.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cursor<'a> {
    file: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(file: &'a [u8]) -> Self {
        Cursor { file, at: 0 }
    }

    pub(super) fn file(&self) -> &'a [u8] {
        self.file
    }

    pub(super) fn at(&self) -> usize {
        self.at
    }

    pub(super) fn left(&self) -> usize {
        self.file.len() - self.at
    }

    /// Returns the next `n` bytes; `what` is for the error.
    pub(super) fn take(&mut self, n: u64, what: &'static str) -> Result<&'a [u8], GgufError> {
        // exercise l2.gguf
        let len = usize::try_from(n).ok().filter(|n| *n <= self.left());
        let Some(len) = len else {
            return Err(GgufError::Truncated { what, at: self.at, need: n, left: self.left() });
        };
        let bytes = &self.file[self.at..self.at + len];
        self.at += len;
        Ok(bytes)
        // end of exercise
    }

    fn array<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N], GgufError> {
        let mut out = [0; N];
        out.copy_from_slice(self.take(N as u64, what)?);
        Ok(out)
    }

    pub(super) fn u32(&mut self, what: &'static str) -> Result<u32, GgufError> {
        self.array(what).map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self, what: &'static str) -> Result<u64, GgufError> {
        self.array(what).map(u64::from_le_bytes)
    }

    /// Reads a length and that many bytes.
    pub(super) fn string(&mut self, what: &'static str) -> Result<&'a [u8], GgufError> {
        let len = self.u64(what)?;
        self.take(len, what)
    }

    /// As [`Cursor::string`], but returns a position, and rejects more than `most` bytes.
    pub(super) fn short_string(
        &mut self,
        what: &'static str,
        most: u64,
    ) -> Result<Span, GgufError> {
        // exercise l2.gguf
        let len = self.u64(what)?;
        if len > most {
            return Err(GgufError::LongName { what, len, most });
        }
        let start = self.at;
        let len = self.take(len, what)?.len();
        Ok(Span { start, len })
        // end of exercise
    }

    /// Position of the bytes that `read` consumes.
    pub(super) fn span<T>(
        &mut self,
        read: impl FnOnce(&mut Self) -> Result<T, GgufError>,
    ) -> Result<Span, GgufError> {
        let start = self.at;
        read(self)?;
        Ok(Span { start, len: self.at - start })
    }

    /// Rejects a count of elements of at least `least` bytes each when the rest of the file is too
    /// short for them, before memory is allocated for them.
    pub(super) fn check_count(
        &self,
        what: &'static str,
        count: u64,
        least: usize,
    ) -> Result<usize, GgufError> {
        // exercise l2.gguf
        let most = self.left() / least;
        usize::try_from(count).ok().filter(|c| *c <= most).ok_or(GgufError::Count {
            what,
            count,
            most,
        })
        // end of exercise
    }
}
