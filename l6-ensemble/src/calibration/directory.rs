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
        let file = match &mut self.open {
            Some((open, file)) if open == name => file,
            open => {
                let mut options = OpenOptions::new();
                options.append(true).create(true);
                #[cfg(unix)]
                std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
                let file = options.open(self.path.join(name))?;
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
