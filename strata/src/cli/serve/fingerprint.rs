//! The fingerprint of a model: whether a specialist has another model than the process before.
//!
//! A digest of all weights would read gigabytes at each start. Training changes nearly all weights, so the names, the
//! sizes and samples of the files tell two models apart.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

/// Number of samples of a file, and the bytes of each.
const SAMPLES: u64 = 16;
const SAMPLE_BYTES: u64 = 4096;

/// Fingerprint of a model's directory or file, as 16 hexadecimal digits.
///
/// # Errors
/// A file that cannot be read.
pub fn fingerprint(model: &Path) -> io::Result<String> {
    let mut files: Vec<PathBuf> = if model.is_dir() {
        let entries = fs::read_dir(model)?.map(|entry| Ok(entry?.path()));
        entries.collect::<io::Result<_>>()?
    } else {
        vec![model.to_owned()]
    };
    files.retain(|path| path.is_file());
    files.sort();
    let mut hash = Sha256::new();
    for path in files {
        let mut file = File::open(&path)?;
        let bytes = file.metadata()?.len();
        let name = path.file_name().unwrap_or_default().as_encoded_bytes();
        hash.update((name.len() as u64).to_le_bytes());
        hash.update(name);
        hash.update(bytes.to_le_bytes());
        let stride = (bytes / SAMPLES).max(SAMPLE_BYTES);
        let starts = (0..bytes).step_by(usize::try_from(stride).unwrap_or(usize::MAX));
        // The last sample is the end of the file.
        for at in starts.chain([bytes.saturating_sub(SAMPLE_BYTES)]) {
            file.seek(SeekFrom::Start(at))?;
            let mut sample = Vec::new();
            file.by_ref().take(SAMPLE_BYTES).read_to_end(&mut sample)?;
            hash.update(sample);
        }
    }
    Ok(hash.finalize().iter().take(8).map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_with_other_weights_has_another_fingerprint() {
        let directory = tempfile::tempdir().unwrap();
        let weights = directory.path().join("model.safetensors");
        let of = |bytes: &[u8]| {
            fs::write(&weights, bytes).unwrap();
            fingerprint(directory.path()).unwrap()
        };
        let first = of(&[1; 100_000]);
        assert_eq!(of(&[1; 100_000]), first, "the time of a file does not count");
        let mut trained = vec![1; 100_000];
        trained[99_000..].fill(2);
        assert_ne!(of(&trained), first);
        assert_ne!(of(&[1; 100_001]), first);
        assert_eq!(first.len(), 16);
        fs::write(directory.path().join("config.json"), "{}").unwrap();
        assert_ne!(fingerprint(directory.path()).unwrap(), of(&trained[..1]));
    }
}
