//! The files of a disk tier: what it asks of a file system.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use super::DiskError;

/// A file of the directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedFile {
    /// Name within the directory.
    pub name: String,
    /// Number of bytes.
    pub len: u64,
    /// Time of the last write.
    pub modified: SystemTime,
}

/// A directory without subdirectories. Tests pass one whose disk is full, slow or damaged.
pub trait ChunkFiles: Send {
    /// Visits the files of the directory, until `visit` returns `false`.
    ///
    /// # Errors
    /// Those of the system.
    fn list(&mut self, visit: &mut dyn FnMut(ListedFile) -> bool) -> io::Result<()>;

    /// Reads a whole file: its first `head` bytes, and the others. A shorter file has a shorter head.
    ///
    /// # Errors
    /// Those of the system; `NotFound` for a file that is not there.
    fn read(&mut self, name: &str, head: usize) -> io::Result<(Vec<u8>, Vec<u8>)>;

    /// Writes a whole file, the two parts one behind the other. It may be there already.
    ///
    /// # Errors
    /// Those of the system. The file may be there, in part.
    fn write(&mut self, name: &str, head: &[u8], rest: &[u8]) -> io::Result<()>;

    /// Gives a file another name, in place of a file of that name.
    ///
    /// # Errors
    /// Those of the system.
    fn rename(&mut self, from: &str, to: &str) -> io::Result<()>;

    /// Removes a file. It is no error if there is none.
    ///
    /// # Errors
    /// Those of the system.
    fn remove(&mut self, name: &str) -> io::Result<()>;
}

/// A directory of the file system, which no other process uses as long as this value lives.
pub struct DirectoryFiles {
    dir: PathBuf,
    /// Locked.
    lock: File,
}

impl DirectoryFiles {
    /// Creates the directory if it is not there, and locks it.
    ///
    /// # Errors
    /// [`DiskError::InUse`]; [`DiskError::Io`].
    pub fn open(dir: &Path) -> Result<Self, DiskError> {
        std::fs::create_dir_all(dir)?;
        let path = dir.join("lock");
        let lock = OpenOptions::new().create(true).truncate(false).write(true).open(path)?;
        match lock.try_lock() {
            Ok(()) => Ok(Self { dir: dir.to_owned(), lock }),
            Err(TryLockError::WouldBlock) => Err(DiskError::InUse(dir.to_owned())),
            Err(TryLockError::Error(e)) => Err(e.into()),
        }
    }
}

impl Drop for DirectoryFiles {
    /// Closing the file would not be enough: a process that another thread is just starting has it open until it runs
    /// its program.
    fn drop(&mut self) {
        // On an error, the lock ends with the process.
        let _ = self.lock.unlock();
    }
}

impl ChunkFiles for DirectoryFiles {
    fn list(&mut self, visit: &mut dyn FnMut(ListedFile) -> bool) -> io::Result<()> {
        for entry in std::fs::read_dir(&self.dir)? {
            let entry = entry?;
            let (Ok(name), metadata) = (entry.file_name().into_string(), entry.metadata()?) else {
                continue;
            };
            let modified = metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH);
            if metadata.is_file() && !visit(ListedFile { name, len: metadata.len(), modified }) {
                break;
            }
        }
        Ok(())
    }

    fn read(&mut self, name: &str, head: usize) -> io::Result<(Vec<u8>, Vec<u8>)> {
        let path = self.dir.join(name);
        let metadata = std::fs::metadata(&path)?;
        if !metadata.is_file() {
            // To open a pipe would wait for a writer, for ever.
            return Ok((Vec::new(), Vec::new()));
        }
        let mut file = File::open(path)?.take(metadata.len());
        let mut first = Vec::with_capacity(head);
        (&mut file).take(head as u64).read_to_end(&mut first)?;
        let mut rest = Vec::new();
        file.read_to_end(&mut rest)?;
        Ok((first, rest))
    }

    fn write(&mut self, name: &str, head: &[u8], rest: &[u8]) -> io::Result<()> {
        let mut file = File::create(self.dir.join(name))?;
        file.write_all(head)?;
        file.write_all(rest)
    }

    fn rename(&mut self, from: &str, to: &str) -> io::Result<()> {
        std::fs::rename(self.dir.join(from), self.dir.join(to))
    }

    fn remove(&mut self, name: &str) -> io::Result<()> {
        match std::fs::remove_file(self.dir.join(name)) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
            _ => Ok(()),
        }
    }
}
