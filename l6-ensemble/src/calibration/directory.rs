//! Where the files of the stream are: a directory, or what a test puts in its place.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// A flat directory of files. Names are plain file names.
pub trait Directory {
    /// Names and sizes, in bytes, of the files.
    ///
    /// # Errors
    /// A directory that cannot be read.
    fn list(&self) -> io::Result<Vec<(String, u64)>>;

    /// Appends bytes to a file, which is created if it does not exist.
    ///
    /// # Errors
    /// A file that cannot be written. A part of the bytes may be written then.
    fn append(&mut self, name: &str, bytes: &[u8]) -> io::Result<()>;

    /// Deletes a file.
    ///
    /// # Errors
    /// A file that cannot be deleted.
    fn remove(&mut self, name: &str) -> io::Result<()>;
}

/// A directory of the file system.
#[derive(Debug)]
pub struct FsDirectory {
    path: PathBuf,
    /// The file that was appended to last.
    open: Option<(String, File)>,
}

impl FsDirectory {
    /// Opens a directory, and creates it if it does not exist. On Unix its owner alone may read what is created.
    ///
    /// # Errors
    /// A directory that cannot be created.
    pub fn new(path: &Path) -> io::Result<Self> {
        let mut builder = fs::DirBuilder::new();
        builder.recursive(true);
        #[cfg(unix)]
        std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
        builder.create(path)?;
        Ok(Self { path: path.to_owned(), open: None })
    }
}

impl Directory for FsDirectory {
    fn list(&self) -> io::Result<Vec<(String, u64)>> {
        let mut files = vec![];
        for entry in fs::read_dir(&self.path)? {
            let entry = entry?;
            let metadata = entry.metadata()?;
            if let (true, Ok(name)) = (metadata.is_file(), entry.file_name().into_string()) {
                files.push((name, metadata.len()));
            }
        }
        Ok(files)
    }

    fn append(&mut self, name: &str, bytes: &[u8]) -> io::Result<()> {
        // The directory may have been removed, or the file renamed: what is written then would be in no file.
        let path = self.path.join(name);
        if self.open.as_ref().is_some_and(|(open, file)| open == name && !is_at(file, &path)) {
            self.open = None;
        }
        let file = match &mut self.open {
            Some((open, file)) if open == name => file,
            open => {
                let mut options = OpenOptions::new();
                options.append(true).create(true);
                #[cfg(unix)]
                std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
                let file = options.open(&path)?;
                &mut open.insert((name.to_owned(), file)).1
            }
        };
        file.write_all(bytes)
    }

    fn remove(&mut self, name: &str) -> io::Result<()> {
        if self.open.as_ref().is_some_and(|(open, _)| open == name) {
            self.open = None;
        }
        fs::remove_file(self.path.join(name))
    }
}

/// Whether an open file is the one that has this path now.
#[cfg(unix)]
fn is_at(file: &File, path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let id = |own: &fs::Metadata| (own.dev(), own.ino());
    matches!((file.metadata(), fs::metadata(path)), (Ok(open), Ok(now)) if id(&open) == id(&now))
}

/// Whether there is a file of this path: which one it is, this system does not say.
#[cfg(not(unix))]
fn is_at(_: &File, path: &Path) -> bool {
    path.is_file()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_was_renamed_or_removed_is_opened_anew() {
        let temporary = tempfile::tempdir().unwrap();
        let path = temporary.path().join("stream");
        let mut directory = FsDirectory::new(&path).unwrap();
        directory.append("a", b"1").unwrap();
        directory.append("a", b"2").unwrap();
        fs::rename(path.join("a"), path.join("old")).unwrap();
        directory.append("a", b"3").unwrap();
        let read = |name: &str| fs::read_to_string(path.join(name)).unwrap();
        assert_eq!((read("old"), read("a")), ("12".to_owned(), "3".to_owned()));
        fs::remove_dir_all(&path).unwrap();
        assert!(directory.append("a", b"4").is_err(), "nothing is lost without an error");
        fs::create_dir(&path).unwrap();
        directory.append("a", b"5").unwrap();
        assert_eq!(read("a"), "5");
    }
}
