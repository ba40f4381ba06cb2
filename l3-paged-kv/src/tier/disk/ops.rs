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
        result: Result<(), WriteError>,
        left: bool,
    },
    /// A file that counts `size` could not be removed.
    Stuck {
        size: u64,
    },
}

/// Why a chunk was not written.
pub(super) struct WriteError {
    pub why: String,
    /// Whether the file system has no room.
    pub full: bool,
}

impl WriteError {
    fn of(error: &io::Error) -> Self {
        let full =
            matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded);
        Self { why: error.to_string(), full }
    }
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
            let result = result.map_err(|e| WriteError::of(&e));
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
    // exercise l3.publish
    match files.read(&name, HEADER_BYTES) {
        Ok((head, bytes)) if is_sound(key, &head, &bytes) => Found::Bytes(bytes),
        Ok(_) => match files.remove(&name) {
            Ok(()) => Found::Nothing { corrupt: true },
            Err(e) => Found::Error(format!("a damaged chunk cannot be removed: {e}")),
        },
        Err(e) if e.kind() == io::ErrorKind::NotFound => Found::Nothing { corrupt: false },
        Err(e) => Found::Error(e.to_string()),
    }
    // end of exercise
}

fn write(files: &mut dyn ChunkFiles, key: &ChunkKey, bytes: &[u8]) -> io::Result<()> {
    let (unfinished, name) =
        (FileName::Unfinished(*key).to_string(), FileName::Chunk(*key).to_string());
    // exercise l3.publish
    files.write(&unfinished, &header(key, bytes), bytes)?;
    files.rename(&unfinished, &name)
    // end of exercise
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::tier::ListedFile;

    const KEY: ChunkKey = ChunkKey([7; 32]);

    /// Files in memory. A write stops after so many bytes, if it is given.
    #[derive(Default)]
    struct Files {
        files: BTreeMap<String, Vec<u8>>,
        room: Option<usize>,
        reads_fail: bool,
        removals_fail: bool,
        /// Names that were written, in order.
        written: Vec<String>,
    }

    fn fails(does: bool) -> io::Result<()> {
        if does { Err(io::Error::other("injected")) } else { Ok(()) }
    }

    impl ChunkFiles for Files {
        fn list(&mut self, _: &mut dyn FnMut(ListedFile) -> bool) -> io::Result<()> {
            Ok(())
        }

        fn read(&mut self, name: &str, head: usize) -> io::Result<(Vec<u8>, Vec<u8>)> {
            fails(self.reads_fail)?;
            let file = self.files.get(name).ok_or(io::ErrorKind::NotFound)?;
            let (head, rest) = file.split_at(head.min(file.len()));
            Ok((head.to_vec(), rest.to_vec()))
        }

        fn write(&mut self, name: &str, head: &[u8], rest: &[u8]) -> io::Result<()> {
            self.written.push(name.to_owned());
            let mut file = [head, rest].concat();
            let whole = file.len();
            file.truncate(self.room.unwrap_or(usize::MAX));
            let cut = file.len() < whole;
            self.files.insert(name.to_owned(), file);
            fails(cut)
        }

        fn rename(&mut self, from: &str, to: &str) -> io::Result<()> {
            let file = self.files.remove(from).ok_or(io::ErrorKind::NotFound)?;
            self.files.insert(to.to_owned(), file);
            Ok(())
        }

        fn remove(&mut self, name: &str) -> io::Result<()> {
            fails(self.removals_fail)?;
            self.files.remove(name);
            Ok(())
        }
    }

    fn names() -> [String; 2] {
        [FileName::Chunk(KEY), FileName::Unfinished(KEY)].map(|name| name.to_string())
    }

    fn stored(files: &mut Files) -> bool {
        let bytes = ChunkBytes::from(b"keys and values".to_vec());
        match execute(files, Op::Write { key: KEY, bytes }) {
            Some(News::Written { result, .. }) => result.is_ok(),
            _ => panic!("a write reports its end"),
        }
    }

    fn found(files: &mut Files) -> Found {
        match execute(files, Op::Read { ticket: Ticket(1), key: KEY }) {
            Some(News::Read { found, .. }) => found,
            _ => panic!("a read reports its end"),
        }
    }

    /// Whether a missing chunk was damaged; `None` if it is not missing.
    fn missing(files: &mut Files) -> Option<bool> {
        match found(files) {
            Found::Nothing { corrupt } => Some(corrupt),
            Found::Bytes(_) | Found::Error(_) => None,
        }
    }

    #[test]
    fn a_chunk_gets_its_name_when_it_is_whole() {
        let (mut files, [chunk, unfinished]) = (Files::default(), names());
        assert!(stored(&mut files));
        assert_eq!(files.written, [unfinished], "the name under which it is written");
        assert_eq!(files.files.keys().collect::<Vec<_>>(), [&chunk], "the name that it has then");
        assert!(matches!(found(&mut files), Found::Bytes(bytes) if bytes == b"keys and values"));
    }

    #[test]
    fn of_a_write_that_fails_nothing_is_found_and_nothing_is_left() {
        for room in [0, 40, 90] {
            let mut files = Files { room: Some(room), ..Files::default() };
            assert!(!stored(&mut files), "a disk with room for {room} bytes");
            assert!(files.files.is_empty(), "{:?}", files.files.keys());
            assert_eq!(missing(&mut files), Some(false));
        }
    }

    #[test]
    fn a_chunk_that_was_written_before_stays_whole_while_it_is_written_again() {
        let mut files = Files::default();
        assert!(stored(&mut files));
        files.room = Some(40);
        assert!(!stored(&mut files));
        assert!(matches!(found(&mut files), Found::Bytes(_)), "the first one is still there");
    }

    #[test]
    fn a_damaged_chunk_is_removed_and_counted() {
        let (mut files, [chunk, _]) = (Files::default(), names());
        assert!(stored(&mut files));
        files.files.get_mut(&chunk).unwrap()[90] ^= 1;
        files.removals_fail = true;
        assert!(matches!(found(&mut files), Found::Error(_)), "it cannot be removed");
        files.removals_fail = false;
        assert_eq!(missing(&mut files), Some(true));
        assert!(files.files.is_empty());
        assert_eq!(missing(&mut files), Some(false), "it is gone");
    }

    #[test]
    fn an_error_of_the_disk_is_no_miss() {
        let mut files = Files { reads_fail: true, ..Files::default() };
        assert!(matches!(found(&mut files), Found::Error(_)));
    }
}
