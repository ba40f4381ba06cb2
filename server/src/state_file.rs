//! Files of `--state-dir`, which are whole whenever the process ends.

use std::fs::File;
use std::io::{self, Read};
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

/// Contents of a file of at most `most` bytes; `None` if there is none.
///
/// # Errors
/// Those of the system, and a file that is larger.
pub fn read_at_most(file: &Path, most: usize) -> io::Result<Option<Vec<u8>>> {
    let opened = match File::open(file) {
        Ok(opened) => opened,
        Err(why) if why.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(why) => return Err(why),
    };
    let mut bytes = Vec::new();
    opened.take(most as u64 + 1).read_to_end(&mut bytes)?;
    if bytes.len() > most {
        let why = format!("it has more than {most} bytes");
        return Err(io::Error::new(io::ErrorKind::InvalidData, why));
    }
    Ok(Some(bytes))
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
