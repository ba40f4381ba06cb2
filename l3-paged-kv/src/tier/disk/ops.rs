//! What the thread of a disk tier does.

use std::io;

use super::ChunkFiles;
use super::names::FileName;
use crate::tier::header::{HEADER_BYTES, header, is_sound};
use crate::tier::{ChunkBytes, ChunkKey, Ticket};

/// Something for the thread to do.
pub(super) enum Op {
    Read {
        ticket: Ticket,
        key: ChunkKey,
    },
    Write {
        key: ChunkKey,
        bytes: ChunkBytes,
    },
    /// `size` is what the file counts.
    Remove {
        key: ChunkKey,
        size: u64,
    },
}

/// What the thread has done.
pub(super) enum News {
    Read {
        ticket: Ticket,
        key: ChunkKey,
        found: Found,
    },
    /// `bytes` is the length of the chunk, which is no longer in the queue. `left`: a part of it is on the disk and could not
    /// be removed.
    Written {
        key: ChunkKey,
        bytes: u64,
        result: Result<(), String>,
        left: bool,
    },
    /// A file that counts `size` could not be removed.
    Stuck {
        size: u64,
    },
}

/// Result of a read.
pub(super) enum Found {
    Bytes(Vec<u8>),
    /// There is no file, or it was damaged and is removed.
    Nothing {
        corrupt: bool,
    },
    Error(String),
}

/// Does one operation, and returns what the tier must know of it.
pub(super) fn execute(files: &mut dyn ChunkFiles, op: Op) -> Option<News> {
    match op {
        Op::Read { ticket, key } => Some(News::Read { ticket, key, found: read(files, &key) }),
        Op::Write { key, bytes } => {
            let result = write(files, &key, &bytes);
            // Removing it gives its room back. What cannot be removed now is removed when the tier is opened again.
            let unfinished = FileName::Unfinished(key).to_string();
            let left = result.is_err() && files.remove(&unfinished).is_err();
            let result = result.map_err(|e| e.to_string());
            Some(News::Written { key, bytes: bytes.len() as u64, result, left })
        }
        Op::Remove { key, size } => {
            let removed = files.remove(&FileName::Chunk(key).to_string());
            removed.is_err().then_some(News::Stuck { size })
        }
    }
}

fn read(files: &mut dyn ChunkFiles, key: &ChunkKey) -> Found {
    let name = FileName::Chunk(*key).to_string();
    match files.read(&name, HEADER_BYTES) {
        Ok((head, bytes)) if is_sound(key, &head, &bytes) => Found::Bytes(bytes),
        Ok(_) => match files.remove(&name) {
            Ok(()) => Found::Nothing { corrupt: true },
            Err(e) => Found::Error(format!("a damaged chunk cannot be removed: {e}")),
        },
        Err(e) if e.kind() == io::ErrorKind::NotFound => Found::Nothing { corrupt: false },
        Err(e) => Found::Error(e.to_string()),
    }
}

fn write(files: &mut dyn ChunkFiles, key: &ChunkKey, bytes: &[u8]) -> io::Result<()> {
    let (unfinished, name) =
        (FileName::Unfinished(*key).to_string(), FileName::Chunk(*key).to_string());
    files.write(&unfinished, &header(key, bytes), bytes)?;
    files.rename(&unfinished, &name)
}
