//! Files of `--state-dir`, which are whole whenever the process ends.

use std::io;
use std::path::Path;

/// Contents of a file; `None` if there is none.
///
/// # Errors
/// Those of the system.
pub fn read(file: &Path) -> io::Result<Option<Vec<u8>>> {
    match std::fs::read(file) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(why) if why.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(why) => Err(why),
    }
}

/// Replaces a file. It is written under another name first.
///
/// # Errors
/// Those of the system.
pub fn replace(file: &Path, bytes: &[u8]) -> io::Result<()> {
    let new = file.with_extension("new");
    std::fs::write(&new, bytes)?;
    std::fs::rename(&new, file)
}
